"""plan_polar, plan_rsvd and plan_pinv: plans of calls that consist of other operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pblas.factor.choose import choose_qr
from pblas.factor.qr_plan import TsqrPlan
from pblas.factor.with_factor_plan import PanelReflectorsPlan, TreeReflectorsPlan
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.matmul.choose import choose
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matrices.matrix import DistMatrix
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import described
from pblas.simulation.hardware import Topology, Transport
from pblas.simulation.phase import Phase, View
from pblas.spectral.least_squares import pinv
from pblas.spectral.norms import check_tolerance
from pblas.spectral.planned import PlannedOfMatrix, Request, ResultT
from pblas.spectral.polar import PolarResult, check_side, polar
from pblas.spectral.rsvd import RsvdResult, check_counts, rsvd
from pblas.spectral.svd_plan import choose_svd

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True, slots=True)
class ComposedPlan(Plan):
    """Operations one after the other, each with a plan of its own."""

    name: ClassVar[str] = "ComposedPlan"

    result: str  # the equation
    a: MatrixDescriptor  # distribution of A (global)
    results: tuple[tuple[str, MatrixDescriptor], ...]  # names and distributions of the results (global)
    parts: tuple[tuple[str, Plan], ...]  # the operations, and what they compute (global)
    why: str
    dtype: str
    nprocs: int
    transport: Transport = "message"

    @property
    def sizes(self) -> str:
        return f"{self.a.m} x {self.a.n}"

    def title(self) -> str:
        return f"{self.result}, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A", described(self.a)
        for name, desc in self.results:
            yield name, described(desc)

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        for (text, name), count in Counter((text, plan.name) for text, plan in self.parts).items():
            yield "step", f"{text}, by {name}{f', {count} times' if count > 1 else ''}"

    def moves(self) -> str:
        return "what the steps move" if self.nprocs > 1 else "nothing"

    def received_elements(self, rank: int) -> int:
        return sum(plan.received_elements(rank) for _, plan in self.parts)

    def sent_elements(self, rank: int) -> int:
        return sum(plan.sent_elements(rank) for _, plan in self.parts)

    def received_nbytes(self, rank: int) -> int:
        return sum(plan.received_nbytes(rank) for _, plan in self.parts)

    def sent_nbytes(self, rank: int) -> int:
        return sum(plan.sent_nbytes(rank) for _, plan in self.parts)

    def phases(self, view: View) -> Iterator[Phase]:
        for _, plan in self.parts:
            yield from plan.phases(view)

    @property
    def workspace_nbytes(self) -> int:
        """The matrices and the workspace of the step that needs most."""
        return max(plan.memory_nbytes for _, plan in self.parts)

    def operands_nbytes(self, rank: int) -> int:
        return self.itemsize * sum(prod(desc.local_shape(rank)) for desc in (self.a, *(x for _, x in self.results)))

    def extreme_ranks(self) -> set[int]:
        """Those of the steps, of which each has few."""
        return set[int]().union(*(plan.extreme_ranks() for _, plan in self.parts))

    @property
    def flops(self) -> int:
        return sum(plan.flops for _, plan in self.parts)

    def over(self, transport: Transport) -> ComposedPlan:
        parts = tuple((text, plan.over(transport)) for text, plan in self.parts)
        return replace(self, parts=parts, transport=transport)


class PlannedCall(PlannedOfMatrix[ResultT]):
    """A planned call of other operations: `execute(A)`. Made by `plan_polar`, `plan_rsvd` and `plan_pinv`."""

    plan: ComposedPlan


class _Steps(NamedTuple):
    """The operations so far, with matrices of one dtype."""

    dtype: str
    nprocs: int
    topology: Topology
    parts: list[tuple[str, Plan]]

    @property
    def transport(self) -> Transport:
        """How the ranks reach each other (global)."""
        return self.topology.transport(self.nprocs)

    def multiply(self, text: str, x: MatrixDescriptor, y: MatrixDescriptor, d: MatrixDescriptor) -> None:
        """D := X Y."""
        self.parts.append((text, choose(self.dtype, x, y, d, context=PlanningContext(self.topology, self.nprocs))))

    def orthonormalize(self, text: str, x: MatrixDescriptor) -> None:
        """X := Q of X."""
        ranks = self.dtype, self.nprocs, self.transport
        plan = choose_qr(x, *ranks)
        kind = TreeReflectorsPlan if isinstance(plan, TsqrPlan) else PanelReflectorsPlan
        self.parts.extend(((text, plan), (text, kind(plan.w, x, *ranks))))

    def decompose(self, text: str, x: MatrixDescriptor) -> tuple[MatrixDescriptor, MatrixDescriptor]:
        """The distributions of U and Vh of X."""
        plan = choose_svd(x, self.dtype, self.nprocs, self.transport)
        self.parts.append((text, plan))
        return plan.u, plan.vh

    def composed(self, result: str, a: MatrixDescriptor, why: str, **results: MatrixDescriptor) -> ComposedPlan:
        """The plan."""
        own = result, a, tuple(results.items()), tuple(self.parts), why
        return ComposedPlan(*own, self.dtype, self.nprocs, self.transport)


def plan_polar(
    a: DistMatrix | MatrixDescriptor,
    side: Literal["right", "left"] = "right",
    *,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
) -> PlannedCall[PolarResult]:
    """Plan a polar decomposition by singular values. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the m x n matrix, or its descriptor (global).
        side: as in `polar` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).

    Returns:
        The planned call: `print(p.explain())`, `p.execute(a)`, `p.plan.simulate("fat-tree")`.

    Raises:
        as `polar`.

    >>> [text for text, _ in plan_polar(MatrixDescriptor.row_wise(64, 64, 4), dtype="float64").plan.parts]
    ['A = U1 diag(S) Vh', 'U := U1 Vh', 'P := Vh^H diag(S) Vh']
    """

    def check(_: MatrixDescriptor) -> dict[str, Any]:
        check_side("plan_polar", side)
        return {"side": side}

    def composed(a: MatrixDescriptor, dtype: str, nprocs: int, topology: Topology, **__: object) -> ComposedPlan:
        steps = _Steps(dtype, nprocs, topology, [])
        u, vh = steps.decompose("A = U1 diag(S) Vh", a)
        k = a.n if side == "right" else a.m
        of_p, right = resized(a, (k, k)), side == "right"
        steps.multiply("U := U1 Vh", u, vh, a)
        text = "P := Vh^H diag(S) Vh" if right else "P := U1 diag(S) U1^H"
        steps.multiply(text, *((vh.T, vh) if right else (u, u.T)), of_p)
        return steps.composed("A = U P" if right else "A = P U", a, "singular values give both factors", U=a, P=of_p)

    request = Request("polar", check, composed, partial(polar, algorithm="svd"))
    return request.planned(PlannedCall[PolarResult], a, dtype, nprocs)


def plan_rsvd(
    a: DistMatrix | MatrixDescriptor,
    k: int,
    *,
    oversample: int = 10,
    power: int = 2,
    seed: int = 0,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
) -> PlannedCall[RsvdResult]:
    """Plan leading singular values and vectors. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the m x n matrix, or its descriptor (global).
        k: as in `rsvd` (global).
        oversample: as in `rsvd` (global).
        power: as in `rsvd` (global).
        seed: as in `rsvd` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).

    Returns:
        The planned call: `print(p.explain())`, `p.execute(a)`, `p.plan.simulate("fat-tree")`.

    Raises:
        as `rsvd`.

    >>> plan = plan_rsvd(MatrixDescriptor.row_wise(4000, 400, 4), 20, power=1, dtype="float64").plan
    >>> plan.parts[0][0], plan.parts[-1][0], len(plan.parts)
    ('Y := A Omega', 'U := Q U1', 12)
    """
    options: dict[str, Any] = {"k": k, "oversample": oversample, "power": power, "seed": seed}

    def check(a: MatrixDescriptor) -> dict[str, Any]:
        check_counts("plan_rsvd", a.shape, **options)
        return options

    def composed(a: MatrixDescriptor, dtype: str, nprocs: int, topology: Topology, **__: object) -> ComposedPlan:
        steps, (m, n), l = _Steps(dtype, nprocs, topology, []), a.shape, min(k + oversample, *a.shape)
        long, short, b = (resized(a, shape) for shape in ((m, l), (n, l), (l, n)))
        steps.multiply("Y := A Omega", a, short, long)
        steps.orthonormalize("Q of Y", long)
        for _ in range(power):
            steps.multiply("Z := A^H Q", a.T, long, short)
            steps.orthonormalize("Q of Z", short)
            steps.multiply("Y := A Q", a, short, long)
            steps.orthonormalize("Q of Y", long)
        steps.multiply("B := Q^H A", long.T, a, b)
        u, vh = steps.decompose("B = U1 diag(S) Vh", b)
        of_u = resized(a, (m, k))
        steps.multiply("U := Q U1", long, u.submatrix(0, l, 0, k), of_u)
        why = f"products with {l} vectors, and {power} more of A^H and A"
        return steps.composed("A ~ U diag(S) Vh", a, why, U=of_u, Vh=vh.submatrix(0, k, 0, n))

    return Request("rsvd", check, composed, rsvd).planned(PlannedCall[RsvdResult], a, dtype, nprocs)


def plan_pinv(
    a: DistMatrix | MatrixDescriptor,
    *,
    rtol: float | None = None,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
) -> PlannedCall[DistMatrix]:
    """Plan a pseudoinverse. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the m x n matrix, or its descriptor (global).
        rtol: as in `pinv` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).

    Returns:
        The planned call: `print(p.explain())`, `p.execute(a)`, `p.plan.simulate("fat-tree")`.

    Raises:
        as `pinv`.

    >>> plan_pinv(MatrixDescriptor.row_wise(4000, 400, 4), dtype="float64").plan.results[0][1].shape
    (400, 4000)
    """

    def check(_: MatrixDescriptor) -> dict[str, Any]:
        check_tolerance("plan_pinv", "rtol", rtol)
        return {"rtol": rtol}

    def composed(a: MatrixDescriptor, dtype: str, nprocs: int, topology: Topology, **__: object) -> ComposedPlan:
        steps = _Steps(dtype, nprocs, topology, [])
        u, vh = steps.decompose("A = U diag(S) Vh", a)
        x = resized(a, a.shape[::-1])
        steps.multiply("X := Vh^H diag(1/S) U^H", vh.T, u.T, x)
        return steps.composed("the pseudoinverse X", a, "singular values decide on the rank", X=x)

    return Request("pinv", check, composed, pinv).planned(PlannedCall[DistMatrix], a, dtype, nprocs)
