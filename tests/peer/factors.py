"""Factorizations by one library, and solves or products with Q by the other, both ways, beside each alone; and times.

Of eigenvalues both libraries compute all, which are compared, and so are the subspaces of eigenvectors.
The cases are the tables of xdllt, xdlu, xdqr, xdls and xdsep, which ScaLAPACK's restrictions on blocks and alignment
allow. Pivots are compared where they are unique: random matrices have no ties.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
from mpi4py import MPI
from rich.table import Table

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.conformance import factors, programs
from tests.peer.library import TUNED, Library

COMM = MPI.COMM_WORLD
STEPS = {"llt": 9, "lu": 5, "qr": 7, "lq": 7, "qp": 7, "ls": 2, "sep": 5}
"""Of the tables' rows every so many; the steps are prime to the numbers of blocks and kinds."""
N, ROUNDS = 1000, 3
_GRIDS = [(p, COMM.size // p) for p in range(1, COMM.size + 1) if COMM.size % p == 0]
"""All grids of all processes."""


def results(peer: Library) -> tuple[Table, int, list[str]]:
    """**Collective.** The table of results, the number of wrong ones where pblas takes part, and texts about them."""
    table = Table(title=f"factorizations, {COMM.size} processes", title_justify="left")
    table.add_column("program")
    for title in ("cases", "failed: pblas", "pblas, ScaLAPACK", "ScaLAPACK, pblas", "ScaLAPACK", "other pivots"):
        table.add_column(title, justify="right")
    pairs: list[tuple[Any, Any]] = [(scalapack, scalapack), (scalapack, peer), (peer, scalapack), (peer, peer)]
    wrong, texts = 0, []
    for program, step in STEPS.items():
        for letter in "sdcz":
            failed, cases = Counter[Any](), programs.table(program, letter)[::step]
            for shape in _GRIDS:
                for case, outcomes in zip(cases, _outcomes(cases, pairs, shape, peer), strict=True):
                    for which, outcome in enumerate(outcomes):
                        if outcome.text:
                            failed[which] += 1
                            texts.append(f"{program}, pair {which} on {shape}: {outcome.text}\n    {case}")
                    failed["pivots"] += outcomes[0].pivots != outcomes[-1].pivots
            wrong += sum(failed[x] for x in (0, 1, 2, "pivots"))
            row = (
                len(cases) * len(_GRIDS),
                *(failed[x] for x in range(4)),
                failed["pivots"] if program in ("lu", "qp") else "",
            )
            table.add_row(f"x{letter}{program}", *map(str, row))
    return table, wrong, texts


def _outcomes(
    cases: list[factors.Case], pairs: list[tuple[Any, Any]], shape: tuple[int, int], peer: Library
) -> list[list[factors.FactorOutcome]]:
    """**Collective.** For each case the outcomes of each pair of libraries, which are those of rank 0."""
    ours, theirs = scalapack.gridinit(COMM, "R", *shape), peer.gridinit(0, "R", *shape)
    inside, outcomes = ours >= 0, []
    if inside:
        grid, comm = Grid(*shape, "R"), scalapack.comm(ours, "A")
        for number, case in enumerate(cases):
            each = []
            for pair in pairs:
                ictxt = tuple(ours if library is scalapack else theirs for library in pair)
                with factors.narrow_panels(grids=number % 2 == 1):  # pblas factors in block columns, and on grids
                    each.append(programs.run(case, (ictxt[0], ictxt[1]), grid, comm, pair))
            outcomes.append(each)
        peer.gridexit(theirs)
        scalapack.gridexit(ours)
    everywhere: list[list[factors.FactorOutcome]] = COMM.bcast(outcomes)
    return everywhere


def times(peer: Library) -> Table:
    """**Collective.** The best of some rounds, in turns; ScaLAPACK at the better of some blocks, tuned."""
    blocks = (32, 64, 128)
    table = Table(title=f"n = {N}, best of {ROUNDS}, ms; ScaLAPACK tuned, blocks of {blocks}", title_justify="left")
    for title in ("routine", "grid", "pblas", "ScaLAPACK", "at its block"):
        table.add_column(title, justify="left" if title in ("routine", "grid") else "right")
    peer.block = TUNED
    for shape in _GRIDS:
        ours, theirs = scalapack.gridinit(COMM, "R", *shape), peer.gridinit(0, "R", *shape)
        for name in ("pdpotrf", "pdgetrf", "pdposv", "pdgesv"):
            best: dict[tuple[str, int], float] = {}
            for _ in range(ROUNDS):
                for nb in blocks:
                    for label, library, ictxt in (("pblas", scalapack, ours), ("ScaLAPACK", peer, theirs)):
                        seconds = _seconds(library, ictxt, name, nb)
                        best[label, nb] = min(best.get((label, nb), np.inf), seconds)
            mine = min(value for (label, _), value in best.items() if label == "pblas")
            other, block = min((value, nb) for (label, nb), value in best.items() if label != "pblas")
            table.add_row(name, f"{shape[0]} x {shape[1]}", f"{1e3 * mine:.1f}", f"{1e3 * other:.1f}", str(block))
        peer.gridexit(theirs)
        scalapack.gridexit(ours)
    return table


def _seconds(library: Any, ictxt: int, name: str, nb: int) -> float:
    """**Collective.** Seconds of one call on new matrices, from a barrier to the last rank's return."""
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt) if library is scalapack else library.gridinfo(ictxt)
    rows, columns, right = (
        scalapack.numroc(size, nb, p, 0, nprocs)
        for size, p, nprocs in ((N, myrow, nprow), (N, mycol, npcol), (nb, mycol, npcol))
    )
    a = np.asfortranarray(np.random.default_rng(COMM.rank).uniform(-1.0, 1.0, (rows, columns)))
    i, j = (
        np.array([scalapack.indxl2g(l + 1, nb, p, 0, nprocs) for l in range(count)])
        for count, p, nprocs in ((rows, myrow, nprow), (columns, mycol, npcol))
    )
    a += N * (i[:, None] == j)  # diagonally dominant, so that the lower triangle is that of a definite matrix
    b, ipiv = np.ones((rows, right), order="F"), np.zeros(rows + nb, np.intc)
    at = (a, 1, 1, [1, ictxt, N, N, nb, nb, 0, 0, max(1, rows)])
    on = (b, 1, 1, [1, ictxt, N, nb, nb, nb, 0, 0, max(1, rows)])
    arguments: dict[str, tuple[Any, ...]] = {
        "pdpotrf": ("L", N, *at),
        "pdposv": ("L", N, nb, *at, *on),
        "pdgetrf": (N, N, *at, ipiv),
        "pdgesv": (N, nb, *at, ipiv, *on),
    }
    info = () if library is scalapack else (np.zeros(1, np.intc),)
    call = getattr(library, name)
    COMM.Barrier()
    start = time.perf_counter()
    call(*arguments[name], *info)
    return float(COMM.allreduce(time.perf_counter() - start, MPI.MAX))
