"""Factorizations and solvers of distributed matrices, with the names of NumPy, SciPy and the array API."""

from __future__ import annotations

from pblas.operations.cg import CgResult as CgResult
from pblas.operations.cg import cg as cg
from pblas.operations.cholesky import PlannedCholesky as PlannedCholesky
from pblas.operations.cholesky import cho_factor as cho_factor
from pblas.operations.cholesky import cholesky as cholesky
from pblas.operations.cholesky import plan_cholesky as plan_cholesky
from pblas.operations.factors import CholeskyFactor as CholeskyFactor
from pblas.operations.factors import LuFactor as LuFactor
from pblas.operations.least_squares import LstsqResult as LstsqResult
from pblas.operations.least_squares import lstsq as lstsq
from pblas.operations.least_squares import orth as orth
from pblas.operations.lu import PlannedLu as PlannedLu
from pblas.operations.lu import lu_factor as lu_factor
from pblas.operations.lu import plan_lu as plan_lu
from pblas.operations.qr import PlannedQr as PlannedQr
from pblas.operations.qr import QrResult as QrResult
from pblas.operations.qr import plan_qr as plan_qr
from pblas.operations.qr import qr as qr
from pblas.operations.qr import qr_factor as qr_factor
from pblas.operations.qr_factor import QrFactor as QrFactor
from pblas.operations.solve_triangular import solve_triangular as solve_triangular
from pblas.operations.solvers import cond as cond
from pblas.operations.solvers import det as det
from pblas.operations.solvers import inv as inv
from pblas.operations.solvers import matrix_norm as matrix_norm
from pblas.operations.solvers import slogdet as slogdet
from pblas.operations.solvers import solve as solve
