"""PBLAS levels 1, 2 and 3 on distributed matrices, with the names of BLAS."""

from __future__ import annotations

from pblas.operations.symm import hemm as hemm
from pblas.operations.symm import plan_hemm as plan_hemm
from pblas.operations.symm import plan_symm as plan_symm
from pblas.operations.symm import symm as symm
from pblas.operations.syrk import her2k as her2k
from pblas.operations.syrk import herk as herk
from pblas.operations.syrk import plan_her2k as plan_her2k
from pblas.operations.syrk import plan_herk as plan_herk
from pblas.operations.syrk import plan_syr2k as plan_syr2k
from pblas.operations.syrk import plan_syrk as plan_syrk
from pblas.operations.syrk import syr2k as syr2k
from pblas.operations.syrk import syrk as syrk
from pblas.operations.trmm import plan_trmm as plan_trmm
from pblas.operations.trmm import trmm as trmm
