"""PBLAS levels 1, 2 and 3 on distributed matrices, with the names of BLAS."""

from __future__ import annotations

from pblas.operations.level1 import amax as amax
from pblas.operations.level1 import asum as asum
from pblas.operations.level1 import axpy as axpy
from pblas.operations.level1 import copy as copy
from pblas.operations.level1 import dot as dot
from pblas.operations.level1 import dotc as dotc
from pblas.operations.level1 import dotu as dotu
from pblas.operations.level1 import nrm2 as nrm2
from pblas.operations.level1 import scal as scal
from pblas.operations.level1 import swap as swap
from pblas.operations.matrix_vector import gemv as gemv
from pblas.operations.matrix_vector import hemv as hemv
from pblas.operations.matrix_vector import symv as symv
from pblas.operations.matrix_vector import trmv as trmv
from pblas.operations.rank_updates import ger as ger
from pblas.operations.rank_updates import gerc as gerc
from pblas.operations.rank_updates import geru as geru
from pblas.operations.rank_updates import her as her
from pblas.operations.rank_updates import her2 as her2
from pblas.operations.rank_updates import syr as syr
from pblas.operations.rank_updates import syr2 as syr2
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
from pblas.operations.trsm import PlannedTrsm as PlannedTrsm
from pblas.operations.trsm import plan_trsm as plan_trsm
from pblas.operations.trsm import trsm as trsm
from pblas.operations.trsv import trsv as trsv
