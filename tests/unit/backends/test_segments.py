"""MPICH's shared memory is found by the processes that have mapped it, and deleted by name and inode."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from pathlib import Path

from pblas.backends.segments import Segment, mapped, unlink


def test_a_mapped_segment_is_found_and_deleted_and_no_other_file_of_its_name() -> None:
    with tempfile.NamedTemporaryFile(prefix="mpich_shm_test_", dir="/dev/shm", delete=False) as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        inode = os.fstat(file.fileno()).st_ino
        segment = Segment(inode, file.name)
        assert segment not in mapped()
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            assert segment in mapped() & mapped(os.getpid())
            unlink([Segment(inode + 1, file.name)])
            assert Path(file.name).exists(), "a file of another job, which has the same name"
            unlink([segment, segment])
            assert not Path(file.name).exists()
            assert segment not in mapped()
            memory[0] = 1


def test_a_process_that_has_ended_has_no_segments() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert mapped(process.pid) == frozenset()
