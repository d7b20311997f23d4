"""A @ v and v @ A for arrays that are equal on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pblas import errors
from pblas.arrays.reductions import product_with_vector
from pblas.core.call import call
from pblas.core.operation import Bound, Operation, WithoutMemory
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.arrays import checked_array, compare_array, converted_array
from pblas.runtime.runtime import Runtime, name_of
from pblas.vectors.matrix_vector_plan import LocalPlan

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.simulation.hardware import Topology


def product_with_array(a: DistMatrix, array: Any, *, left: bool = False) -> DistMatrix | Array:
    """**Collective.** A times an array, or the array times A if `left`; see `DistMatrix.__matmul__`."""
    with a.runtime.call("matmul"):
        if array.ndim == 1 and a.runtime.reproducible:
            matrix = a.T if left else a
            desc = MatrixDescriptor.replicated(matrix.shape[0], 1, a.runtime.nprocs)
            column = pmatmul(matrix, replicated_matrix("matmul", a, array[:, None]), out=desc)
            host: Array = a.runtime.backend.reading(column.stored("matmul"))[:, 0]
            return host
        if array.ndim == 1:
            return product_with_vector(a.T if left else a, array)
        b = replicated_matrix("matmul", a, array)
        return pmatmul(b, a) if left else pmatmul(a, b)


@dataclass(frozen=True, eq=False)
class Replication(Operation[DistMatrix]):
    """A replicated matrix, from an array of two dimensions that all ranks have."""

    noun: ClassVar[str] = "replication"

    a: MatrixDescriptor
    conjugated: bool
    array: MatrixDescriptor
    dtype: Dtype

    @classmethod
    def bind(cls, opname: str, runtime: Runtime, like: DistMatrix, array: object) -> Bound[DistMatrix]:
        """The arguments, checked on this rank; the new matrix gets the dtype of `like`."""
        elements = checked_array(opname, "the array", array, runtime)
        if elements.ndim != 2:
            raise errors.ArgumentError(f"{opname}: the array has {elements.ndim} dimensions; expected 2")
        compare_array("the array", elements, runtime)
        elements = converted_array(opname, "the array", elements, like.dtype)
        m, n = elements.shape
        desc = MatrixDescriptor.replicated(m, n, runtime.nprocs, order=runtime.order or like.desc.order)
        form = like.desc.without_lld, like.conjugated, desc, like.dtype
        return Bound(cls, form, {}, {"A": like}, None, local=elements)

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.array, self.dtype

    @property
    def is_local(self) -> bool:
        return True

    def plan(self, nprocs: int, topology: Topology) -> LocalPlan:
        return LocalPlan("copy of an array", self.array, name_of(self.dtype), nprocs, topology.transport(nprocs))

    def executor(self, plan: LocalPlan, backend: HostRanks) -> RunReplication:
        return RunReplication(backend)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> tuple[Array, Array]:
        return bound.local, result.stored(opname)


class RunReplication(WithoutMemory):
    """The executor of a replication: each rank copies the array."""

    def __init__(self, backend: HostRanks) -> None:
        self._backend = backend

    def publish(self, _: tuple[Array, Array]) -> bool:
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return False

    def run(self, x: tuple[Array, Array]) -> None:
        self._backend.copy(*x)


def replicated_matrix(opname: str, like: DistMatrix, array: object) -> DistMatrix:
    """**Collective.** A replicated matrix of the dtype of `like`, from an array that all ranks have."""
    return call(opname, Replication.bind, {"A": like}, like, array)
