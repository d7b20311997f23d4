"""Data distribution: the rank that owns each element. Integers only, without array or communication libraries."""

if __name__ != "pblas.layouts":
    raise ImportError("import pblas.layouts: 'layouts' is a folder of the pblas package, not a package of its own")

from pblas.layouts.descriptor import MatrixDescriptor as MatrixDescriptor
from pblas.layouts.grid import Grid as Grid
from pblas.layouts.index import indxg2l as indxg2l
from pblas.layouts.index import indxg2p as indxg2p
from pblas.layouts.index import indxl2g as indxl2g
from pblas.layouts.index import numroc as numroc
from pblas.layouts.split import Split as Split

__all__ = ["Grid", "MatrixDescriptor", "Split", "indxg2l", "indxg2p", "indxl2g", "numroc"]
