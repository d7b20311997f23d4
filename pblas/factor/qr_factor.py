"""QrFactor: A = Q R with Q as Householder reflectors, which multiply matrices; `qr_factor` makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.arrays.stacking import resized
from pblas.core.checks import checked_letter, checked_trans
from pblas.core.options import Side, Trans
from pblas.core.progress import StageReport
from pblas.factor import arguments
from pblas.factor.factorization import FactoredMatrix
from pblas.factor.with_factor import Reflectors, multiplied
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor

Mode = Literal["reduced", "complete"]


class QrFactor(FactoredMatrix):
    """A = Q R of an m x n matrix, in memory of its context. It keeps no reference to the matrix.

    Q is unitary, m x m, and a product of Householder reflectors: it is never formed unless `q` is called.

    Args:
        reflectors: Q and R (global).
        desc: layout of A (global).
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
        verb, runtime = "apply_q", self._runtime
        with runtime.call(verb):
            with runtime.local_step(verb):
                self._w.stored(verb)
                trans, side = checked_trans(verb, "trans", trans), checked_letter(verb, "side", side, "LR")
                arguments.check_matrix(verb, "C", c, runtime, self.dtype)
                m, length = self.shape[0], c.shape[0 if side == "L" else 1]
                if length != m:
                    what = "rows" if side == "L" else "columns"
                    raise errors.DescriptorError(f"{verb}: Q is {m} x {m}, C has {length} {what}; make them agree")
            runtime.agree(verb, {"side": side, "trans": trans, **c.signature(), **self._signature})
            return self.applied(verb, c, trans, side=side)

    def applied(
        self, verb: str, c: DistMatrix, trans: Trans, progress: StageReport = None, *, side: Side = "L"
    ) -> DistMatrix:
        """**Collective.** op(Q) C or C op(Q) inside another call, with checked arguments; see `apply_q`."""
        return multiplied(verb, self._reflectors, c, side=side, trans=trans, progress=progress)

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
        verb = "q"
        with self._runtime.call(verb):
            self._count(verb, mode)
            return self.formed(verb, mode)

    def formed(self, verb: str, mode: Mode, out: DistMatrix | None = None, progress: StageReport = None) -> DistMatrix:
        """**Collective.** `q` inside another call, with a checked mode.

        Args:
            verb: name of the call (global).
            mode: as in `q` (global).
            out: matrix like A for Q if it has the shape of A; None for a new one (global).
            progress: called with the done part of the work (local).
        """
        m = self.shape[0]
        shape = m, m if mode == "complete" else min(self.shape)
        out = out if shape == self.shape else None
        return multiplied(verb, self._reflectors, resized(self._desc, shape), out=out, progress=progress)

    def taken(self, verb: str, mode: Mode, out: DistMatrix | None = None, progress: StageReport = None) -> DistMatrix:
        """**Collective.** `formed` of a factor that is not used afterwards, whose memory Q may take."""
        return self.formed(verb, mode, out, progress)

    def r(self, mode: Mode = "reduced") -> DistMatrix:
        """**Collective.** R, a new matrix with zeros below its diagonal, in a layout as of `q`.

        Args:
            mode: "reduced" for its first min(m, n) rows, "complete" for all m (global).

        Raises:
            ArgumentError: another mode.
        """
        verb = "r"
        with self._runtime.call(verb):
            return self.upper(verb, self._count(verb, mode))

    def upper(self, verb: str, k: int, *, is_last: bool = False) -> DistMatrix:
        """**Collective.** The first k rows of R, and zeros below it, inside another call; W is dropped if `is_last`."""
        m, n = self.shape
        desc = resized(self._desc, (k, n))
        return redistributed(verb, self._w[: min(k, m), :], desc, uplo="U", is_temporary=is_last)

    def triangle(self, verb: str) -> DistMatrix:
        """**Collective.** A matrix whose upper triangle is R, inside another call; m >= n."""
        return self._w[: self.shape[1], :]

    def _count(self, verb: str, mode: Any) -> int:
        """**Collective.** The columns of Q and rows of R for a mode, after checks."""
        with self._runtime.local_step(verb):
            self._w.stored(verb)
            if mode not in ("reduced", "complete"):
                raise errors.ArgumentError(f"{verb}: mode must be 'reduced' or 'complete', got {mode!r}")
        self._runtime.agree(verb, {"mode": mode, **self._signature})
        return self.shape[0] if mode == "complete" else min(self.shape)
