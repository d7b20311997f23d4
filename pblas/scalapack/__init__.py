"""ScaLAPACK's routines under their names, with their arguments in their order.

A line of Fortran becomes a line of Python: `CALL PDGEMM(...)` is `pdgemm(...)`. A routine returns its output
arguments: `nprow, npcol, myrow, mycol = gridinfo(ictxt)`. Indices count from 1, and descriptors are lists of integers.
Local arrays are NumPy's or CuPy's, stored by columns or by rows. The rest of pblas counts from 0 and has objects for
matrices and descriptors.
"""

from pblas.errors import PblasArgumentError as PblasArgumentError
from pblas.scalapack.descriptors import descinit as descinit
from pblas.scalapack.grids import exit as exit  # noqa: A004 - as in BLACS
from pblas.scalapack.grids import get as get
from pblas.scalapack.grids import gridexit as gridexit
from pblas.scalapack.grids import gridinfo as gridinfo
from pblas.scalapack.grids import gridinit as gridinit
from pblas.scalapack.grids import gridmap as gridmap
from pblas.scalapack.grids import pcoord as pcoord
from pblas.scalapack.grids import pinfo as pinfo
from pblas.scalapack.grids import pnum as pnum
from pblas.scalapack.level3 import pcgeadd as pcgeadd
from pblas.scalapack.level3 import pcgemm as pcgemm
from pblas.scalapack.level3 import pctradd as pctradd
from pblas.scalapack.level3 import pctranc as pctranc
from pblas.scalapack.level3 import pctranu as pctranu
from pblas.scalapack.level3 import pctrsm as pctrsm
from pblas.scalapack.level3 import pctrtrs as pctrtrs
from pblas.scalapack.level3 import pdgeadd as pdgeadd
from pblas.scalapack.level3 import pdgemm as pdgemm
from pblas.scalapack.level3 import pdtradd as pdtradd
from pblas.scalapack.level3 import pdtran as pdtran
from pblas.scalapack.level3 import pdtrsm as pdtrsm
from pblas.scalapack.level3 import pdtrtrs as pdtrtrs
from pblas.scalapack.level3 import psgeadd as psgeadd
from pblas.scalapack.level3 import psgemm as psgemm
from pblas.scalapack.level3 import pstradd as pstradd
from pblas.scalapack.level3 import pstran as pstran
from pblas.scalapack.level3 import pstrsm as pstrsm
from pblas.scalapack.level3 import pstrtrs as pstrtrs
from pblas.scalapack.level3 import pzgeadd as pzgeadd
from pblas.scalapack.level3 import pzgemm as pzgemm
from pblas.scalapack.level3 import pztradd as pztradd
from pblas.scalapack.level3 import pztranc as pztranc
from pblas.scalapack.level3 import pztranu as pztranu
from pblas.scalapack.level3 import pztrsm as pztrsm
from pblas.scalapack.level3 import pztrtrs as pztrtrs
from pblas.scalapack.redist import pcgemr2d as pcgemr2d
from pblas.scalapack.redist import pctrmr2d as pctrmr2d
from pblas.scalapack.redist import pdgemr2d as pdgemr2d
from pblas.scalapack.redist import pdtrmr2d as pdtrmr2d
from pblas.scalapack.redist import psgemr2d as psgemr2d
from pblas.scalapack.redist import pstrmr2d as pstrmr2d
from pblas.scalapack.redist import pzgemr2d as pzgemr2d
from pblas.scalapack.redist import pztrmr2d as pztrmr2d
from pblas.scalapack.tools import indxg2l as indxg2l
from pblas.scalapack.tools import indxg2p as indxg2p
from pblas.scalapack.tools import indxl2g as indxl2g
from pblas.scalapack.tools import infog2l as infog2l
from pblas.scalapack.tools import numroc as numroc
from pblas.scalapack.tools import pcelget as pcelget
from pblas.scalapack.tools import pcelset as pcelset
from pblas.scalapack.tools import pclaprnt as pclaprnt
from pblas.scalapack.tools import pdelget as pdelget
from pblas.scalapack.tools import pdelset as pdelset
from pblas.scalapack.tools import pdlaprnt as pdlaprnt
from pblas.scalapack.tools import pselget as pselget
from pblas.scalapack.tools import pselset as pselset
from pblas.scalapack.tools import pslaprnt as pslaprnt
from pblas.scalapack.tools import pzelget as pzelget
from pblas.scalapack.tools import pzelset as pzelset
from pblas.scalapack.tools import pzlaprnt as pzlaprnt
