"""Factorizations and solvers of distributed matrices, with the names of NumPy, SciPy and the array API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas._lazy import lazy

if TYPE_CHECKING:
    from pblas.factor.cg import CgResult as CgResult
    from pblas.factor.cg import cg as cg
    from pblas.factor.cholesky import PlannedCholesky as PlannedCholesky
    from pblas.factor.cholesky import cho_factor as cho_factor
    from pblas.factor.cholesky import cholesky as cholesky
    from pblas.factor.cholesky import plan_cholesky as plan_cholesky
    from pblas.factor.factors import CholeskyFactor as CholeskyFactor
    from pblas.factor.factors import LuFactor as LuFactor
    from pblas.factor.lu import PlannedLu as PlannedLu
    from pblas.factor.lu import lu_factor as lu_factor
    from pblas.factor.lu import plan_lu as plan_lu
    from pblas.factor.qr import PlannedQr as PlannedQr
    from pblas.factor.qr import plan_qr as plan_qr
    from pblas.factor.qr import qr_factor as qr_factor
    from pblas.factor.qr_factor import QrFactor as QrFactor
    from pblas.factor.qr_matrices import PivotedQrResult as PivotedQrResult
    from pblas.factor.qr_matrices import QrResult as QrResult
    from pblas.factor.qr_matrices import qr as qr
    from pblas.factor.solvers import det as det
    from pblas.factor.solvers import inv as inv
    from pblas.factor.solvers import orth as orth
    from pblas.factor.solvers import slogdet as slogdet
    from pblas.factor.solvers import solve as solve
    from pblas.spectral.composed import PlannedCall as PlannedCall
    from pblas.spectral.composed import plan_pinv as plan_pinv
    from pblas.spectral.composed import plan_polar as plan_polar
    from pblas.spectral.composed import plan_rsvd as plan_rsvd
    from pblas.spectral.eigh import CheckedEighResult as CheckedEighResult
    from pblas.spectral.eigh import EighResult as EighResult
    from pblas.spectral.eigh import PlannedEigh as PlannedEigh
    from pblas.spectral.eigh import eigh as eigh
    from pblas.spectral.eigh import eigvalsh as eigvalsh
    from pblas.spectral.eigh import plan_eigh as plan_eigh
    from pblas.spectral.functions import expm as expm
    from pblas.spectral.functions import inverse_root as inverse_root
    from pblas.spectral.functions import invsqrtm as invsqrtm
    from pblas.spectral.functions import signm as signm
    from pblas.spectral.functions import sqrtm as sqrtm
    from pblas.spectral.least_squares import LstsqResult as LstsqResult
    from pblas.spectral.least_squares import lstsq as lstsq
    from pblas.spectral.least_squares import pinv as pinv
    from pblas.spectral.many import orthogonalize_many as orthogonalize_many
    from pblas.spectral.newton_schulz import newton_schulz as newton_schulz
    from pblas.spectral.norms import cond as cond
    from pblas.spectral.norms import matrix_norm as matrix_norm
    from pblas.spectral.norms import matrix_rank as matrix_rank
    from pblas.spectral.polar import PolarResult as PolarResult
    from pblas.spectral.polar import polar as polar
    from pblas.spectral.rsvd import RsvdResult as RsvdResult
    from pblas.spectral.rsvd import rsvd as rsvd
    from pblas.spectral.svd import PlannedSvd as PlannedSvd
    from pblas.spectral.svd import SvdResult as SvdResult
    from pblas.spectral.svd import plan_svd as plan_svd
    from pblas.spectral.svd import svd as svd
    from pblas.spectral.svd import svdvals as svdvals
    from pblas.triangular.trsm import solve_triangular as solve_triangular
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "pblas.factor.cg": "cg CgResult",
            "pblas.factor.cholesky": "cho_factor cholesky plan_cholesky PlannedCholesky",
            "pblas.factor.factors": "CholeskyFactor LuFactor",
            "pblas.factor.lu": "lu_factor plan_lu PlannedLu",
            "pblas.factor.qr": "plan_qr PlannedQr qr_factor",
            "pblas.factor.qr_factor": "QrFactor",
            "pblas.factor.qr_matrices": "PivotedQrResult qr QrResult",
            "pblas.factor.solvers": "det inv orth slogdet solve",
            "pblas.spectral.composed": "plan_pinv plan_polar plan_rsvd PlannedCall",
            "pblas.spectral.eigh": "CheckedEighResult eigh EighResult eigvalsh plan_eigh PlannedEigh",
            "pblas.spectral.functions": "expm inverse_root invsqrtm signm sqrtm",
            "pblas.spectral.least_squares": "lstsq LstsqResult pinv",
            "pblas.spectral.many": "orthogonalize_many",
            "pblas.spectral.newton_schulz": "newton_schulz",
            "pblas.spectral.norms": "cond matrix_norm matrix_rank",
            "pblas.spectral.polar": "polar PolarResult",
            "pblas.spectral.rsvd": "rsvd RsvdResult",
            "pblas.spectral.svd": "plan_svd PlannedSvd svd SvdResult svdvals",
            "pblas.triangular.trsm": "solve_triangular",
        },
    )
