"""QrFactor: A = Q R with Q as Householder reflectors, which multiply matrices; `qr_factor` makes it."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.core.checks import checked_letter, checked_trans
from pblas.core.options import Side, Trans
from pblas.factor import arguments
from pblas.factor.factorization import FactoredMatrix
from pblas.factor.qr_plan import PASSES
from pblas.factor.with_factor import Reflectors, empty, identity, multiplied, reported, zeros
from pblas.layouts.descriptor import resized
from pblas.matmul.api import pmatmul
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import StageReport
from pblas.runtime.runtime import is_one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.factor.qr_run import RunCholeskyQr
    from pblas.layouts.descriptor import MatrixDescriptor

Mode = Literal["reduced", "complete"]


class QrFactor(FactoredMatrix):
    """A = Q R of an m x n matrix, in memory of its context. It keeps no reference to the matrix.

    Q is unitary, m x m, and a product of Householder reflectors: it is never formed unless `q` is called.
    """

    def __init__(self, reflectors: Reflectors, desc: MatrixDescriptor) -> None:
        super().__init__(reflectors.w, desc)
        self._reflectors = reflectors

    def apply_q(self, c: DistMatrix, side: Side = "L", trans: Trans = "N") -> DistMatrix:
        """**Collective.** op(Q) C, or C op(Q), with the m x m matrix Q.

        Args:
            c: m x k matrix of the dtype of A, or k x m with side "R", in any layout (global).
            side: "L" for op(Q) C, "R" for C op(Q) (global).
            trans: op: "N" for Q, "T" for its transpose, "C" for its conjugate transpose (global).

        Returns:
            A new matrix in the layout of C.

        Raises:
            ArgumentError, DescriptorError, DTypeError: a wrong argument; the same error on every rank.
            MismatchError: ranks that passed different arguments.

        Source: LAPACK xORMQR, xUNMQR; ScaLAPACK p?ormqr, p?unmqr.
        """
        opname, runtime = "apply_q", self._runtime
        with runtime.call(opname):
            with runtime.local_step(opname):
                self._w.stored(opname)
                trans, side = checked_trans(opname, "trans", trans), checked_letter(opname, "side", side, "LR")
                arguments.check_matrix(opname, "C", c, runtime, self.dtype)
                m, length = self.shape[0], c.shape[0 if side == "L" else 1]
                if length != m:
                    what = "rows" if side == "L" else "columns"
                    raise errors.DescriptorError(f"{opname}: Q is {m} x {m}, C has {length} {what}; make them agree")
            runtime.agree(opname, {"side": side, "trans": trans, **c.signature(), **self._signature})
            return self.applied(opname, c, trans, side=side)

    def applied(
        self, opname: str, c: DistMatrix, trans: Trans, progress: StageReport = None, *, side: Side = "L"
    ) -> DistMatrix:
        """**Collective.** op(Q) C or C op(Q) inside another call, with checked arguments; see `apply_q`."""
        return multiplied(opname, self._reflectors, c, side=side, trans=trans, progress=progress)

    def q(self, mode: Mode = "reduced") -> DistMatrix:
        """**Collective.** Q, a new matrix.

        Args:
            mode: "reduced" for its first min(m, n) columns, "complete" for all m (global).

        Returns:
            Q, in the layout of A if it has the shape of A; otherwise on the grid of A, in blocks of its size, or even
            ones where A has one block in each process.

        Raises:
            ArgumentError: another mode.

        Source: LAPACK xORGQR, xUNGQR.
        """
        opname = "q"
        with self._runtime.call(opname):
            self._count(opname, mode)
            return self.formed(opname, mode)

    def formed(
        self, opname: str, mode: Mode, out: DistMatrix | None = None, progress: StageReport = None
    ) -> DistMatrix:
        """**Collective.** `q` inside another call, with a checked mode; in `out` if Q has the shape of A."""
        m = self.shape[0]
        shape = m, m if mode == "complete" else min(self.shape)
        out = out if shape == self.shape else None
        return multiplied(opname, self._reflectors, resized(self._desc, shape), out=out, progress=progress)

    def taken(self, opname: str, mode: Mode, out: DistMatrix | None = None, progress: StageReport = None) -> DistMatrix:
        """**Collective.** `formed` of a factor that is not used afterwards, whose memory Q may take."""
        return self.formed(opname, mode, out, progress)

    def r(self, mode: Mode = "reduced") -> DistMatrix:
        """**Collective.** R, a new matrix with zeros below its diagonal, in a layout as of `q`.

        Args:
            mode: "reduced" for its first min(m, n) rows, "complete" for all m (global).

        Raises:
            ArgumentError: another mode.
        """
        opname = "r"
        with self._runtime.call(opname):
            return self.upper(opname, self._count(opname, mode))

    def upper(self, opname: str, k: int, *, is_last: bool = False) -> DistMatrix:
        """**Collective.** The first k rows of R, and zeros below it, inside another call; W is dropped if `is_last`."""
        m, n = self.shape
        desc = resized(self._desc, (k, n))
        return redistributed(opname, self._w[: min(k, m), :], desc, uplo="U", is_temporary=is_last)

    def triangle(self, opname: str) -> DistMatrix:
        """**Collective.** A matrix whose upper triangle is R, inside another call; m >= n."""
        return self._w[: self.shape[1], :]

    def _count(self, opname: str, mode: object) -> int:
        """**Collective.** The columns of Q and rows of R for a mode, after checks."""
        with self._runtime.local_step(opname):
            self._w.stored(opname)
            if not is_one_of(mode, "reduced", "complete"):
                raise errors.ArgumentError(f"{opname}: mode must be 'reduced' or 'complete', got {mode!r}")
        self._runtime.agree(opname, {"mode": mode, **self._signature})
        return self.shape[0] if mode == "complete" else min(self.shape)


_NEAR = 0.25  # norm(G - I) of the last Gram matrix at most: its Cholesky factor then makes Q orthonormal to rounding


def orthonormalized(
    opname: str, a: DistMatrix, desc: MatrixDescriptor, executor: RunCholeskyQr
) -> tuple[DistMatrix, Array] | None:
    """**Collective.** Q in rows and R with A = Q R, which is equal on all ranks."""
    runtime, n = a.runtime, a.shape[1]
    if _is_in_rows(opname, a, desc):
        x, w = a, empty(desc, a)
    else:
        x = w = redistributed(opname, a, desc)
    wide = np.result_type(w.dtype, np.float64)
    r: Array = np.eye(n, dtype=wide)
    for k in range(PASSES):
        with runtime.local_step(opname):
            own = executor.gram(x.stored(opname))
        runtime.agree(f"{opname}: Gram matrix", {})
        parts = runtime.backend.gather(own)
        gram: Any = sum(part.astype(wide) for part in parts)
        is_last = k > 0 and bool(np.linalg.norm(gram - np.eye(n)) <= _NEAR)
        triangle = _triangle(gram, 0)
        if not k and (triangle is None or executor.needs_shift(triangle)):
            triangle = _triangle(gram, executor.shift())
        if triangle is None or (k == PASSES - 1 and not is_last):
            return None
        factor = triangle.astype(w.dtype)
        with runtime.local_step(opname):
            executor.divide(x.stored(opname), w.stored(opname), factor)
        x = w
        r = np.triu(factor.astype(wide) @ r)
        if is_last:
            break
    runtime.agree(f"{opname}: Q", {})
    return w, r.astype(w.dtype)


def _is_in_rows(opname: str, a: DistMatrix, desc: MatrixDescriptor) -> bool:
    """**Collective.** Whether all ranks have their rows of W in A, stored by columns: then A is not copied."""
    with a.runtime.local_step(opname):
        x = a.stored(opname)
        by_columns = not x.size or (x.strides[0] == x.itemsize and x.strides[1] >= x.itemsize * len(x))
        fits = by_columns and not a.conjugated and a.desc.same_distribution(desc)
    return not a.runtime.agree(f"{opname}: rows of A", {}, maxima=(int(not fits),))[0]


def _triangle(gram: Array, shift: float) -> Array | None:
    """R with R^H R = G + shift norm(G) I; None if there is none."""
    size = float(np.abs(gram).sum(0).max(initial=0.0))
    if not np.isfinite(size):
        return None
    try:
        lower = np.linalg.cholesky(gram + shift * size * np.eye(len(gram)))
    except np.linalg.LinAlgError:
        return None
    upper: Array = lower.conj().T
    return upper if np.isfinite(upper).all() else None


class CholeskyQrFactor(QrFactor):
    """A = Q R with the first n columns of Q, by CholeskyQR.

    The m x m matrix Q is H D with D = diag(S, I), signs S, and H = I - Y M Y^H, where Y is Q S without the first n
    columns of the identity, and M = -(Y[:n])^-H: H is unitary, and its first n columns are Q S. S makes Y[:n] well
    conditioned, as in an LU factorization. It is computed when it is needed first.

    Source: Ballard, Demmel, Grigori, Jacquelin, Knight, Nguyen, Reconstructing Householder vectors from TSQR, 2015;
        Yamamoto, Aggregation of the compact WY representations generated by the TSQR algorithm, 2012.
    """

    def __init__(self, q: DistMatrix, r: Array, desc: MatrixDescriptor) -> None:
        super().__init__(Reflectors(q), desc)
        self._r = r

    def applied(
        self, opname: str, c: DistMatrix, trans: Trans, progress: StageReport = None, *, side: Side = "L"
    ) -> DistMatrix:
        """**Collective.** op(Q) C or C op(Q) inside another call, with checked arguments; see `apply_q`."""
        desc, conj = c.desc.without_lld, trans == "T" and self.dtype.kind == "c"
        across: Trans = "T" if conj else "C"
        if side == "R":  # C op(Q) = (op(Q)^H C^H)^H, and C Q^T = (Q C^T)^T
            x = redistributed(opname, c, desc.T, trans=across)
        else:  # Q^T C = conj(Q^H conj(C))
            x = redistributed(opname, c.conj() if conj else c, desc)
        self._multiply(opname, x, adjoint=(trans != "N") == (side == "L"))
        if side == "R":
            x = redistributed(opname, x, desc, trans=across, is_temporary=True)
        elif conj:
            x = redistributed(opname, x.conj(), desc, is_temporary=True)
        return reported(x, progress)

    def formed(
        self, opname: str, mode: Mode, out: DistMatrix | None = None, progress: StageReport = None
    ) -> DistMatrix:
        """**Collective.** `q` inside another call, with a checked mode; see `QrFactor.formed`."""
        m, n = self.shape
        if mode == "reduced" or m == n:
            q = redistributed(opname, self._w, self._desc.without_lld if out is None else None, out=out)
        else:
            q = identity(opname, resized(self._desc, (m, m)), self._w)
            self._multiply(opname, q, adjoint=False)
        return reported(q, progress)

    def taken(self, opname: str, mode: Mode, out: DistMatrix | None = None, progress: StageReport = None) -> DistMatrix:
        """**Collective.** `formed` of a factor that is not used afterwards: W itself, if it has the layout of A."""
        if mode == "complete" or out is not None:
            return self.formed(opname, mode, out, progress)
        if self._w.desc.order == self._desc.order and self._w.desc.same_distribution(self._desc):
            return reported(DistMatrix(self._desc, self._w.stored(opname), self._runtime), progress)
        return reported(redistributed(opname, self._w, self._desc, is_temporary=True), progress)

    def triangle(self, opname: str) -> DistMatrix:
        return self.upper(opname, self.shape[1])

    def upper(self, opname: str, k: int, *, is_last: bool = False) -> DistMatrix:
        n, like = self.shape[1], self._w
        r = replicated_matrix(opname, like, self._r)
        if k == n:
            return redistributed(opname, r, resized(self._desc, (n, n)), is_temporary=True)
        result = zeros(opname, resized(self._desc, (k, n)), like)
        redistributed(opname, r, out=result[:n, :], is_temporary=True)
        return result

    def _multiply(self, opname: str, x: DistMatrix, *, adjoint: bool) -> None:
        """X := Q X or Q^H X, by two products with Q."""
        if not x.shape[1]:
            return
        n, (signs, middle) = self.shape[1], self._reflector
        top, product = x[:n, :], self._product
        diagonal = self._small(opname, np.diag(signs))
        if not adjoint:  # D X
            redistributed(opname, product(diagonal, top), out=top, is_temporary=True)
        m = middle.conj().T if adjoint else middle
        # Z = M Y^H X, with Y^H X = S Q^H X - X[:n]; then X -= Q S Z, and X[:n] += Z
        z = product(self._small(opname, m * signs), product(self._w.H, x))
        z = product(self._small(opname, -m), top, z, beta=1, out=z)
        product(self._w, product(diagonal, z), x, alpha=-1, beta=1, out=x)
        product(self._small(opname, np.eye(n)), z, top, beta=1, out=top)
        if adjoint:
            redistributed(opname, product(diagonal, top), out=top, is_temporary=True)

    @property
    def _product(self) -> Callable[..., DistMatrix]:
        """pmatmul, on CPUs with pieces that depend on no transport and no measured rate: so do not the bits of Q."""
        return pmatmul if self._runtime.topology.gpus else partial(pmatmul, chunks=1)

    def _small(self, opname: str, array: Array) -> DistMatrix:
        """**Collective.** A small matrix on all ranks."""
        return replicated_matrix(opname, self._w, np.asfortranarray(array.astype(self.dtype)))

    @cached_property
    def _reflector(self) -> tuple[Array, Array]:
        """**Collective.** S and M, equal on all ranks."""
        n = self.shape[1]
        top = self._w[:n, :].to_global(None)
        rest = np.array(top, np.result_type(self.dtype, np.float64))
        signs = np.ones(n)
        for j in range(n):  # an LU factorization of Q[:n] - S, whose pivots are 1 at least
            signs[j] = 1 if rest[j, j].real <= 0 else -1
            rest[j, j] -= signs[j]
            rest[j + 1 :, j] /= rest[j, j]
            rest[j + 1 :, j + 1 :] -= np.outer(rest[j + 1 :, j], rest[j, j + 1 :])
        y = np.asarray(top).astype(rest.dtype) * signs - np.eye(n)
        return signs, -np.linalg.inv(y).conj().T
