"""Remedies that messages print as code: calls that follow them, for `tests/mpi/laws/test_printed_remedies.py`."""

from __future__ import annotations

from typing import NamedTuple


class Remedy(NamedTuple):
    """A call that fails, a part of its message, and the call that follows it; all are code."""

    wrong: str
    printed: str
    right: str  # it contains `printed`, with other names at most
    names: str = ""  # what names of the message stand for, as "B = A"


REMEDIES = (
    Remedy("bool(A)", "A.any()", "A.any()"),
    Remedy("bool(A)", "A.all()", "A.all()"),
    Remedy("A.redistribute(out=narrow)", "A.astype('float32')", "A.astype('float32').redistribute(out=narrow)"),
    Remedy(
        "np.add(A, A, where=X > 0)",
        "pblas.where(condition, x, y)",
        "pblas.where(condition, x, y)",
        "condition, x, y = A > 0, A + A, A",
    ),
    Remedy("np.add(A, A, dtype='f4')", "A.astype(dtype)", "np.add(A.astype(dtype), A.astype(dtype))", "dtype = 'f4'"),
    Remedy("complexes.max()", "A.norm('max')", "A.norm('max')", "A = complexes"),
    Remedy("np.cbrt(A)", "f(A.local, out=A.local)", "f(A.local, out=A.local)", "f, A = np.cbrt, A.copy()"),
    Remedy("np.cumsum(A)", "A.to_global()", "A.to_global()"),
    Remedy("np.asarray(A)", "A.to_global()", "A.to_global()"),
    Remedy("pblas.pmatmul(A, narrow)", 'B.astype("float64")', 'pblas.pmatmul(A, B.astype("float64"))', "B = narrow"),
    Remedy(
        "pblas.pmatmul(A, A, narrow, out=S.copy())",
        'C.astype("float64")',
        'pblas.pmatmul(A, A, C.astype("float64"), out=S.copy())',
        "C = narrow",
    ),
    Remedy(
        "linalg.solve(S, S[:, :2], overwrite_a=True)",
        "B.copy()",
        "linalg.solve(S, B.copy(), overwrite_a=True)",
        "B = S[:, :2]",
    ),
    Remedy("pblas.pmatmul(A, A, scale_a=2.0)", "D.norm('max')", "D.norm('max')", "D = pblas.pmatmul(A, A, alpha=2.0)"),
    Remedy(
        "ctx.allreduce(X, epilogue=pblas.Epilogue('x * s'))",
        "Epilogue('x * s', s=...)",
        "ctx.allreduce(X, epilogue=pblas.Epilogue('x * s', s=2.0))",
    ),
    Remedy("pblas.elementwise('x * relu', x=A)", "relu(...)", "pblas.elementwise('x * relu(x)', x=A)"),
    Remedy("pblas.elementwise('x * s', x=A)", "elementwise('x * s', s=...)", "pblas.elementwise('x * s', s=2.0, x=A)"),
    Remedy(
        "pblas.elementwise('x + y', x=A, y=[1.0] * N)",
        "np.asarray(y)",
        "pblas.elementwise('x + y', x=A, y=np.asarray(y))",
        "y = [1.0] * N",
    ),
    Remedy(
        "A + X.astype('longdouble')", "y.astype('float64')", "A + y.astype('float64')", "y = X.astype('longdouble')"
    ),
    Remedy(
        "pblas.elementwise('x', x=complexes, out=A)",
        "abs(A)",
        "pblas.elementwise('x', x=abs(A), out=A.copy().real)",
        "A = complexes",
    ),
    Remedy("pblas.elementwise('x', x=complexes, out=A)", "A.real", "A.real", "A = complexes"),
    Remedy(
        "pblas.plan_elementwise('x + x', x=A.desc)",
        "dtype='float64'",
        "pblas.plan_elementwise('x + x', x=A.desc, dtype='float64').explain()",
    ),
    Remedy("MatrixDescriptor(N, N, 2, 2, 'x')", "Grid(2, 3)", "MatrixDescriptor(N, N, 2, 2, pblas.Grid(2, 3))"),
    Remedy(
        "ctx.zeros(MatrixDescriptor(N, N, N, N, pblas.Grid(1, 1), lld=1))",
        "lld=None",
        "ctx.zeros(MatrixDescriptor(N, N, N, N, pblas.Grid(1, 1), lld=None))",
    ),
    Remedy(
        "pblas.Context(link=(1e-6, 1e9))",
        "transport='message'",
        "pblas.Context(link=(1e-6, 1e9), transport='message').close()",
    ),
    Remedy("pblas.pmatmul(A, A, beta=2.0)", "beta=0", "pblas.pmatmul(A, A, beta=0)"),
    Remedy("pblas.pmatmul(A, A, beta=2.0)", "c=", "pblas.pmatmul(A, A, c=S, beta=2.0)"),
    Remedy(
        "strict(linalg.solve, hilbert, ctx.ones((15, 1)))",
        "check=False",
        "strict(linalg.solve, hilbert, ctx.ones((15, 1)), check=False)",
    ),
    Remedy("complexes.H.__iadd__(1.0)", "copy()", "complexes.H.copy().__iadd__(1.0)"),
    Remedy("ctx.from_local(wide[::2, ::2], whole)", "copy=True", "ctx.from_local(wide[::2, ::2], whole, copy=True)"),
    Remedy(
        "ctx.from_local(np.ones((N + 1, N)), desc)",
        "desc.local_shape(rank)",
        "ctx.from_local(np.ones(desc.local_shape(rank), order='F'), desc)",
        "rank = ctx.rank",
    ),
    Remedy("ctx.zeros((N, N), int)", "dtype='float64'", "ctx.zeros((N, N), dtype='float64')"),
    Remedy(
        "linalg.cg(-S, ctx.ones((N, 1)))", "linalg.solve(A, B)", "linalg.solve(A, B)", "A, B = -S, ctx.ones((N, 1))"
    ),
    Remedy("ctx.allreduce([1.0, 2.0])", "np.asarray(x)", "ctx.allreduce(np.asarray(x))", "x = [1.0, 2.0]"),
    Remedy("narrow @ (X + 1e-9)", "np.asarray(x, 'float32')", "narrow @ np.asarray(x, 'float32')", "x = X"),
    Remedy(
        "A[[0, 2], [1, 2]]", "A[np.ix_(rows, columns)]", "A[np.ix_(rows, columns)]", "rows, columns = [0, 2], [1, 2]"
    ),
    Remedy("A.redistribute(desc, out=S)", "out=B", "A.redistribute(out=B)", "B = S.copy()"),
    Remedy("A.redistribute()", "desc=", "A.redistribute(desc=desc)"),
    Remedy("closed @ closed", "inside its with block", "inside(A)"),
    Remedy("A.__setitem__(A > 0, X)", "pblas.where(mask, x, A)", "pblas.where(mask, x, A)", "mask, x = A > 0, X"),
    Remedy(
        "pblas.plan_matmul(3.5, 4, 5)",
        "plan_matmul(m, n, k, nprocs=8)",
        "pblas.plan_matmul(m, n, k, nprocs=8).explain()",
        "m, n, k = 3, 4, 5",
    ),
    Remedy(
        "ctx.from_global(np.ones(N), desc, None)",
        "reshape(m, n)",
        "ctx.from_global(np.ones(N).reshape(m, n), None, None)",
        "m, n = 1, N",
    ),
    Remedy("ctx.allgather(np.array(1.0))", "x.reshape(1)", "ctx.allgather(x.reshape(1))", "x = np.ones(())"),
    Remedy("blas.symm(A[:, :2] @ ctx.ones((2, 4)), A)", "side='L'", "blas.symm(S, A, side='L')"),
    Remedy("pblas.redistribute(A, desc, diagonal=1)", "uplo='U'", "pblas.redistribute(A, desc, diagonal=1, uplo='U')"),
    Remedy(
        "A + np.ma.masked_less(np.ones(N), 2)", "x.filled(0)", "A + x.filled(0)", "x = np.ma.masked_less(np.ones(N), 2)"
    ),
    Remedy("A @ scipy.sparse.csr_array(np.eye(N))", ".toarray()", "A @ scipy.sparse.csr_array(np.eye(N)).toarray()"),
    Remedy("ctx.allreduce(1j * X, op='max')", "'sum'", "ctx.allreduce(1j * X, op='sum')"),
    Remedy(
        "pblas.pmatmul(A, A, out_dtype='float32', out=S)", "leave out_dtype out", "pblas.pmatmul(A, A, out=S.copy())"
    ),
    Remedy(
        "tp.linear_allreduce(wide, wide, ctx=ctx, out_dtype='float32', out=np.ones((6, 6)))",
        "leave out_dtype out",
        "tp.linear_allreduce(wide, wide, ctx=ctx, out=np.ones((6, 6)))",
    ),
    Remedy("ctx.from_local(A, desc)", "A.to_global()", "A.to_global()"),
)
WORDS = "inside its with block", "leave out_dtype out"
"""Remedies in words."""
ELSEWHERE = {
    "dataset=X": "tests/mpi/matrices/test_hdf5.py",
    "overwrite=True": "tests/mpi/matrices/test_hdf5.py",
    "dtype=X": "tests/mpi/matrices/test_files.py: elements that pblas does not multiply",
    "dtype='bfloat16'": "tests/mpi/matrices/test_files.py: raw elements",
    "plot(path)": "tests/unit/test_handles.py",
    "reproducible=True": "tests/mpi/laws/test_reproducible.py",
    "reproducible='exact'": "tests/mpi/laws/test_exact.py",
    "MPI.Finalize()": "tests/unit/backends/test_launch.py",
    "MPI.Init_thread()": "tests/unit/backends/test_launch.py",
    "pblas.Context()": "README.md runs it",
    "Context()": "README.md runs it",
    "Context(timeout=...)": "a limit of a wait that has ended: tests/mpi/faults/test_peers.py passes it",
    "Context(transport='message')": "tests/unit/backends/test_launch.py: a small /dev/shm",
    "XA.to_global()": "tests/mpi/matrices/test_numpy.py: the functions of NumPy that pblas has not",
    "X.astype('float32')": "tests/mpi/operations/test_dtypes.py: 8 bits",
    "tp.local_shard()": "tests/mpi/tp/test_tp.py: shards of several lengths",
}
"""Remedies that other tests follow."""
NOT_RUN = {
    "cupy|cuda|nvshmem|NVSHMEM|backend=|device=|PBLAS_SYMMETRIC_SIZE|order='C'": "needs GPUs",
    "torch|x.cpu|x.to_dense|x.resolve_conj|process_group": "needs torch",
    "pip install": "needs an index of packages; tests/unit/test_packaging.py checks the names",
    "size=|ipc=host": "needs Docker",
    "mpiexec": "starts a job; tests/unit/backends/test_launch.py",
    "main": "is the program of a rank",
    r"op\(|sub\(|max\(0|numroc": "is a formula, not a remedy",
}
"""Remedies that cannot be run here, as a pattern of their code, and the reason."""
