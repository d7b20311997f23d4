"""Runs the GPU tests on one or more GPUs; prints one line for each leg.

    python tests/harness/run_gpu.py                  1, 2, 4, 8 GPUs if there are, killed ranks, the sanitizer
    python tests/harness/run_gpu.py -n 2,4           tests/gpu on 2 and on 4 GPUs
    python tests/harness/run_gpu.py -n 4 -k replays  with arguments of pytest
    PBLAS_SHARE_GPU=1 python tests/harness/run_gpu.py -n 2,8   several ranks on each GPU, which get time slices
    PBLAS_SHARE_GPU=1 python tests/harness/run_gpu.py --quick  every algorithm, plan and dtype, on 2 and on 8 ranks

MPIEXEC names the launcher, the one of the MPI that mpi4py was built for; see tests/gpu/README.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.faults.fault_job import KILLED, TIMEOUT  # noqa: E402
from tests.harness import run  # noqa: E402

SECONDS = 900.0  # of one leg
QUICK = (
    "tests/gpu/products/test_matmul.py",
    *("-k", "test_product or every_algorithm or leaves_the_same_bits or test_empty"),
)
"""The tests that --quick runs."""
QUICK_SECONDS = 240.0  # of one leg of it
SHARED_SECONDS = 180.0  # of one test whose ranks share a GPU: each wait takes time slices
SURVIVORS = TIMEOUT + 8.0  # seconds within which the surviving ranks must raise
ENVIRONMENT = {
    # A program that uses NVLink multicast and dies can put all GPUs of a host out of service.
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
DESCRIBE = """
import cupy
from importlib.metadata import distributions
runtime = cupy.cuda.runtime
names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
versions = {x.metadata["Name"]: x.version for x in distributions() if x.metadata["Name"]}
shown = "cupy-", "nvshmem4py", "nvidia-nvshmem", "nvmath"
kept = sorted(f"{n} {v}" for n, v in versions.items() if n.startswith(shown))
print(len(names))
print(f"{len(names)} x {names[0]}, CUDA {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()}; "
      + ", ".join(dict.fromkeys(kept)) if names else "no GPU")
"""


def gpus() -> int:
    """Number of GPUs of the host; prints their names and library versions.

    A separate process looks for them, so that this one holds no CUDA context.
    """
    described = subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True, check=False)
    if described.returncode:
        print(f"no GPU can be used: {described.stderr.strip().splitlines()[-1]}")
        return 0
    number, text = described.stdout.strip().splitlines()[-2:]
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {text}", flush=True)
    return int(number)


def launcher() -> str:
    """The command that starts ranks: MPIEXEC, else mpiexec in the folder of this Python, else the system's."""
    local = Path(sys.executable).parent / "mpiexec"
    return os.environ.get("MPIEXEC") or (str(local) if local.exists() else shutil.which("mpiexec") or "mpiexec")


def leg(ranks: int, options: Namespace, arguments: list[str]) -> bool:
    """Run tests/gpu on some ranks, on one rank also the tests of single GPUs; print the notes of the tests."""
    paths = [] if any(Path(ROOT, argument.partition("::")[0]).exists() for argument in arguments) else ["tests/gpu"]
    chosen = () if ranks == 1 or "-m" in arguments else ("-m", "mpi")
    with tempfile.NamedTemporaryFile("r") as notes:
        os.environ["PBLAS_TEST_NOTES"] = notes.name
        outcomes, _ = run.run_leg(
            run.Leg(ranks, Path(sys.executable), (*chosen, *arguments, *paths)),
            options,
            time.monotonic() + min(SECONDS, options.deadline),
        )
        print(*(f"  {line.rstrip()}" for line in notes), sep="\n", flush=True)
    wrong = [f"  {how.upper()} {test}" for test, how in outcomes.items() if how in ("failed", "cut")]
    print(*wrong, sep="\n", flush=True)
    return bool(outcomes) and not wrong


def killed(ranks: int, *, survive: bool) -> bool:
    """Run a job in which one rank is killed: the job ends, or with `survive` the other ranks name the missing rank.

    A launcher that sees a rank die ends the job. With `survive` each rank runs in a shell that lives on, so that the
    launcher does not see it.
    """
    job = [sys.executable, str(ROOT / "tests/gpu/faults/fault_job.py")]
    shell = ["sh", "-c", f'"$0" "$@"; sleep {3 * SURVIVORS}'] if survive else []
    name, wrong = f"{ranks} ranks, one killed" + (" unnoticed by the launcher" if survive else ""), ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder, start = Path(place), time.monotonic()
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(
                [launcher(), "-n", str(ranks), *shell, *job, place],
                cwd=ROOT,
                env={**os.environ, **run.ENVIRONMENT, "PYTHONPATH": _python_path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            end = start + 120
            while process.poll() is None and len(list(folder.glob("rank.*"))) < ranks - 1 and time.monotonic() < end:
                time.sleep(0.1)
            if not survive:
                end = min(end, time.monotonic() + SURVIVORS)
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
            status = process.poll()
            run.stop(process)
        seconds = time.monotonic() - start
        reports = {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob("rank.*")}
        text = (folder / "output").read_text(errors="replace")
        started = len(list(folder.glob("pid.*"))) == ranks
    if not started:
        wrong = f"not all ranks came to multiply (exit status {status})"
    elif survive:
        silent = sorted(set(range(ranks)) - {KILLED} - set(reports))
        bad = [
            x for x in reports.values() if x["name"] != "PeerTimeout" or f"rank {KILLED} of {ranks}" not in x["text"]
        ]
        slowest = max((x["seconds"] for x in reports.values()), default=0.0)
        name += f": PeerTimeout on the others after {slowest:.1f} s, limit {TIMEOUT:g} s"
        if silent or bad or slowest > SURVIVORS:
            wrong = f"ranks {silent} said nothing" if silent else str(bad or "too late")
    elif not status:
        wrong = "the job did not end" if status is None else "exit status 0"
    else:
        name += f": the job ended, status {status}"
    if wrong:
        print(text)
    print(f"{name}: {'FAILED: ' + wrong if wrong else 'ok'} in {seconds:.1f} s", flush=True)
    return not wrong


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def sanitizer() -> bool:
    """Run the kernel tests of one GPU under memcheck."""
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not program or not (ROOT / "tests/gpu/kernels/test_kernels.py").exists():
        print("memcheck: left out, no compute-sanitizer")
        return True
    # The sanitizer may run one kernel at a time, so no kernel may wait for another stream.
    alone = (
        "(test_kernels and not streams and not replayed) or test_pointwise or epilogues_are_of_the_sums"
        " or (sent_and_added and 8-72)"
    )
    files = [f"tests/gpu/kernels/test_{name}.py" for name in ("kernels", "pointwise", "hopper")]
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-k", alone, *files]
    # Libraries ask the driver for functions that it may not have: such failed calls are not errors.
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    command = [program, *options, sys.executable, *test]
    start = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        status, text = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired:
        status, text = -1, f"not done within {SECONDS:g} s"
    if status:
        print(text)
    summary = next((line.strip("= ") for line in reversed(text.splitlines()) if "ERROR SUMMARY" in line), "no summary")
    print(f"memcheck: {'FAILED' if status else 'ok'}, {summary} in {time.monotonic() - start:.1f} s", flush=True)
    return not status


def main() -> int:
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    os.environ["MPIEXEC"] = launcher()
    options, arguments = run.parse(sys.argv[1:])
    number = gpus()
    if not number:
        return 1
    shares = os.environ.get("PBLAS_SHARE_GPU") == "1"
    if shares:
        options.timeout = max(options.timeout, SHARED_SECONDS)
    if options.quick:
        arguments, options.deadline = [*QUICK, *arguments], min(options.deadline, QUICK_SECONDS)
    sizes = options.ranks or [n for n in ((2, 8) if options.quick else (1, 2, 4, 8)) if n <= number or shares]
    right = [leg(n, options, arguments) for n in sizes]
    if not arguments:
        largest = max(n for n in sizes)
        if largest > 1:
            right += [killed(largest, survive=False), killed(largest, survive=True)]
        if 1 in sizes:
            right.append(sanitizer())
    print("all right" if all(right) else "FAILED", flush=True)
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
