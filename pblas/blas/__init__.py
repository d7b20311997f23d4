"""PBLAS levels 1, 2 and 3 on distributed matrices, with the names of BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas._lazy import lazy

if TYPE_CHECKING:
    from pblas.symmetric.api import hemm as hemm
    from pblas.symmetric.api import her2k as her2k
    from pblas.symmetric.api import herk as herk
    from pblas.symmetric.api import plan_hemm as plan_hemm
    from pblas.symmetric.api import plan_her2k as plan_her2k
    from pblas.symmetric.api import plan_herk as plan_herk
    from pblas.symmetric.api import plan_symm as plan_symm
    from pblas.symmetric.api import plan_syr2k as plan_syr2k
    from pblas.symmetric.api import plan_syrk as plan_syrk
    from pblas.symmetric.api import symm as symm
    from pblas.symmetric.api import syr2k as syr2k
    from pblas.symmetric.api import syrk as syrk
    from pblas.triangular.trmm import plan_trmm as plan_trmm
    from pblas.triangular.trmm import trmm as trmm
    from pblas.triangular.trsm import PlannedTrsm as PlannedTrsm
    from pblas.triangular.trsm import plan_trsm as plan_trsm
    from pblas.triangular.trsm import trsm as trsm
    from pblas.triangular.trsm import trsv as trsv
    from pblas.vectors.level1 import amax as amax
    from pblas.vectors.level1 import asum as asum
    from pblas.vectors.level1 import axpy as axpy
    from pblas.vectors.level1 import copy as copy
    from pblas.vectors.level1 import dot as dot
    from pblas.vectors.level1 import dotc as dotc
    from pblas.vectors.level1 import dotu as dotu
    from pblas.vectors.level1 import nrm2 as nrm2
    from pblas.vectors.level1 import scal as scal
    from pblas.vectors.level1 import swap as swap
    from pblas.vectors.matrix_vector import gemv as gemv
    from pblas.vectors.matrix_vector import hemv as hemv
    from pblas.vectors.matrix_vector import symv as symv
    from pblas.vectors.matrix_vector import trmv as trmv
    from pblas.vectors.rank_updates import ger as ger
    from pblas.vectors.rank_updates import gerc as gerc
    from pblas.vectors.rank_updates import geru as geru
    from pblas.vectors.rank_updates import her as her
    from pblas.vectors.rank_updates import her2 as her2
    from pblas.vectors.rank_updates import syr as syr
    from pblas.vectors.rank_updates import syr2 as syr2
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "pblas.symmetric.api": (
                "hemm her2k herk plan_hemm plan_her2k plan_herk plan_symm plan_syr2k plan_syrk symm syr2k syrk"
            ),
            "pblas.triangular.trmm": "plan_trmm trmm",
            "pblas.triangular.trsm": "plan_trsm PlannedTrsm trsm trsv",
            "pblas.vectors.level1": "amax asum axpy copy dot dotc dotu nrm2 scal swap",
            "pblas.vectors.matrix_vector": "gemv hemv symv trmv",
            "pblas.vectors.rank_updates": "ger gerc geru her her2 syr syr2",
        },
    )
