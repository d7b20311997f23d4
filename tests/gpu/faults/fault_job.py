"""A job in which rank 1 is killed in the middle of executions; every other rank records its error and its time.

    mpiexec -n 4 python tests/gpu/faults/fault_job.py FOLDER

Launched by tests/harness/run_gpu.py. Where the launcher ends the whole job, as it does when it notices, no file is
written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

TIMEOUT = 2.0
KILLED = 1


def main(folder: Path) -> None:
    import cupy

    import pblas
    from pblas import MatrixDescriptor

    ctx = pblas.Context(backend="nvshmem", timeout=TIMEOUT)
    rows = MatrixDescriptor.row_wise(64, 64, ctx.nprocs)
    a, b, d = (ctx.random(rows, "float32", seed=i) for i in range(3))
    planned = pblas.plan_matmul(a, b, out=d, chunks=2)
    for _ in range(10):
        planned.execute(a, b, out=d)
    cupy.cuda.runtime.deviceSynchronize()
    whole = d.to_global(None)
    assert whole is not None
    (folder / f"pid.{ctx.rank}").write_text(str(os.getpid()))
    if ctx.rank == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    start, name, text = time.monotonic(), "no exception", ""
    for _ in range(5):
        try:
            planned.execute(a, b, out=d)
            cupy.cuda.runtime.deviceSynchronize()
        except Exception as error:  # noqa: BLE001 - every error is reported
            name, text = type(error).__name__, str(error)
            break
    outcome = {"name": name, "text": text, "seconds": time.monotonic() - start}
    temporary = folder / f"report.{ctx.rank}"
    temporary.write_text(json.dumps(outcome))
    temporary.rename(folder / f"rank.{ctx.rank}")
    os._exit(0)  # MPI would wait for the killed rank


if __name__ == "__main__":
    main(Path(sys.argv[1]))
