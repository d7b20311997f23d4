"""All public collective calls of pblas as operations."""

from __future__ import annotations

from dataclasses import replace

from tests.common.operations.arrays import COLLECTIVES, ELEMENTWISE, MAKING, MOVING, REDUCING
from tests.common.operations.factors import FACTORS
from tests.common.operations.level3 import PRODUCTS, SOLVES, STRUCTURED
from tests.common.operations.operation import Operation
from tests.common.operations.vectors import LEVEL1, LEVEL2

LISTS = (
    *(PRODUCTS, STRUCTURED, SOLVES, LEVEL1, LEVEL2),
    *(ELEMENTWISE, MOVING, REDUCING, MAKING, COLLECTIVES, FACTORS),
)
OPERATIONS: dict[str, Operation] = {
    x.name: replace(x, values={"dtype": "complex128", **x.values}) for operations in LISTS for x in operations
}
