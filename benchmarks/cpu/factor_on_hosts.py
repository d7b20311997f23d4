"""benchmarks.cpu.factor on hosts, two with one rank each or others, whose network is limited.

    make peer                                   once, for ScaLAPACK
    python -m benchmarks.cpu.factor_on_hosts --rate 1gbit --kinds cholesky,lu --sizes 2048 --json FILE

Makes the hosts on this machine (tests/harness/hosts.py: network namespaces, TCP, a core for each host). All arguments
but --rate and --hosts are those of benchmarks.cpu.factor. Its column "SciPy" is left out: a host has one core, on which
two threads of a BLAS took 15 s for QR of n = 2048.

ScaLAPACK runs on 1 x 2: on 2 x 1 its search for a pivot sends messages for each column, which take 15 ms here, or half
a minute for n = 2048. MPICH runs on libfabric: on UCX, its default, ScaLAPACK's LU and QR of n = 2048 stall.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.hosts import Hosts, leave, parse_ranks

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", help="what a host receives, as 1gbit; without it nothing is limited")
    parser.add_argument("--hosts", default="2x1", help="hosts and ranks of each, as 2x2")
    options, others = parser.parse_known_args()
    signal.signal(signal.SIGTERM, leave)  # the hosts are removed then too
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(ROOT / "build" / "peer"),
        "OPENBLAS_NUM_THREADS": "1",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
    }
    ranks = parse_ranks(options.hosts)
    grid = f"1x{sum(ranks)}"
    rank = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.cpu.factor", "--grids", grid, *others]
    with Hosts(len(ranks)) as hosts:
        hosts.limit(options.rate)
        command = hosts.command(str(Path(sys.executable).parent / "mpiexec"), ranks, rank)
        subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=900)


if __name__ == "__main__":
    main()
