"""PBLAS levels 1, 2 and 3 on distributed matrices, with the names of BLAS."""

from __future__ import annotations

from pblas.operations.trsm import PlannedTrsm as PlannedTrsm
from pblas.operations.trsm import plan_trsm as plan_trsm
from pblas.operations.trsm import trsm as trsm
