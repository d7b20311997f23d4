"""Ranks from a plain script or a notebook: `run` starts them for one function, `Pool` keeps them for several.

The caller starts `mpiexec`, and each rank connects to a Unix socket in a private temporary folder, which is deleted as
soon as all ranks are there. Functions, arguments, results and output travel through these connections only. A rank
whose connection is closed ends itself, so no rank outlives the caller. Matrices that stay on the ranks have handles in
the process of a pool.
"""

from pblas.launch.handles import Handle as Handle
from pblas.launch.pool import Pool as Pool
from pblas.launch.pool import run as run

__all__ = ["Handle", "Pool", "run"]
