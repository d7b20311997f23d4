"""dry_run: the time and the memory of a program on any number of ranks, without them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.settings import DRY_RUN
from pblas.simulation.dry_run import DryRun, Ledger, least_ranks
from pblas.simulation.hardware_file import find_hardware

if TYPE_CHECKING:
    from pblas.simulation.hardware import Hardware


def dry_run(
    function: Callable[[], Any],
    *,
    ranks: int = 4096,
    hardware: Hardware | str = "fat-tree",
    values: Mapping[str, float | Sequence[float]] | None = None,
) -> DryRun:
    """Run a program on one process without its ranks: plan each operation, and execute none (local).

    Contexts that the function makes have `ranks` ranks of the described machine; this process is rank 0. Their matrices
    have descriptors and no elements. Wrong shapes, layouts and dtypes raise the errors of a real run. Time is the sum
    of the plans' predictions; what the program computes by itself is not counted.

    Values that the program reads, as `A.norm()`, `A.to_global()` or eigenvalues, are stand-ins: arrays of zeros that
    print as "?", and whose functions are stand-ins too. Where Python needs a number, as in `if A.norm() < tol`, it gets
    the one in memory, and the result lists the line in `reads`. `ctx.allreduce` and the other collectives of arrays
    take all ranks' arrays to be equal. An array from `A.local` has zeros.

    Args:
        function: the program. It is called again with other numbers of ranks, without its output, to find the fewest
            that have enough memory.
        ranks: number of ranks.
        hardware: a `pblas.Hardware`, the name of a preset ("laptop", "fat-tree", "nvlink"), or of a TOML file that
            `pblas bench --hardware` writes.
        values: for the name of a call the number that its stand-ins have, or a list with a number for each call, of
            which the last one stays: {"norm": [1, 1, 1e-9]} ends a loop after three steps.

    Returns:
        Time, operations, memory over time, and the fewest ranks that have enough memory; `print` shows them.

    Raises:
        ArgumentError: not a function, or a wrong number; a line that has read 10,000 values, as in a loop that waits
            for one.
        PblasError: whatever the program raises.

    >>> import pblas
    >>> def program():
    ...     with pblas.Context() as ctx:
    ...         A = ctx.random((40_000, 40_000))
    ...         return A @ A
    >>> run = pblas.dry_run(program, ranks=64)
    >>> run.fits, run.operations[0].call, run.peak_nbytes > 2 * 8 * 40_000**2 // 64
    (True, 'pmatmul', True)
    """
    if not callable(function):
        raise errors.ArgumentError(f"dry_run: expected a function without arguments, got {type(function).__name__}")
    number: object = ranks
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise errors.ArgumentError(f"dry_run: ranks must be an integer from 1 on, got {ranks!r}")
    described, given = find_hardware(hardware), values or {}
    ledger, reads, ended, value = _run(function, ranks, described, given)

    def peak_of(nprocs: int) -> int:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            return _run(function, nprocs, described, given)[0].peak_nbytes

    try:
        least = least_ranks(peak_of, ranks, ledger.peak_nbytes, described.memory_nbytes)
    except (errors.PblasError, SystemExit):  # the program refuses other numbers of ranks
        least = ranks if ledger.peak_nbytes <= described.memory_nbytes else None
    return DryRun(
        hardware=described.name,
        nprocs=ranks,
        seconds=ledger.seconds,
        operations=ledger.operations,
        memory=tuple(ledger.memory),
        peak_nbytes=ledger.peak_nbytes,
        peak_call=ledger.peak_call,
        memory_limit=described.memory_nbytes,
        least_ranks=least,
        reads=reads,
        ended=ended,
        value=value,
    )


def _run(
    function: Callable[[], Any], ranks: int, hardware: Hardware, given: Mapping[str, float | Sequence[float]]
) -> tuple[Ledger, dict[str, int], str, Any]:
    """One run: what it takes, the lines that read values, where an assertion about them failed, and its result."""
    from pblas.backends.dry_backend import Recording
    from pblas.backends.stand_in import Values

    ledger, values, ended, value = Ledger(hardware), Values(given), "", None
    recording = Recording(
        *(ranks, hardware.ranks_per_node, hardware.shared, hardware.far.bandwidth),
        *(values, ledger.executed, ledger.allocated),
    )
    token = DRY_RUN.set(recording)
    try:
        value = function()
    except AssertionError as caught:
        if not values.reads:
            raise
        frame = extract_tb(caught.__traceback__)[-1]
        ended = f"{frame.filename}:{frame.lineno}"
    finally:
        DRY_RUN.reset(token)
        for context in recording.defaults:
            context.close()
    return ledger, dict(values.reads), ended, value
