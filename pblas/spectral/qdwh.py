"""Weights of iterations that make all singular values 1, QDWH and scaled Newton: pure numbers, equal on all ranks.

X := X (a I + b X^H X) (I + c X^H X)^-1 makes x (a + b x^2) / (1 + c x^2) of a singular value x. The weights are
the best ones for values in [l, 1]. Where c is large, only a QR factorization of [sqrt(c) X; I] makes it stable.
The scaled Newton iteration X := (s X + (s X)^-H) / 2 needs more steps, each of which takes one inverse.

Source: Nakatsukasa, Bai, Gygi, Optimizing Halley's iteration for computing the matrix polar decomposition, 2010;
    Nakatsukasa, Higham, Backward stability of iterations for computing the polar decomposition, 2012;
    Byers, Xu, A new scaling for Newton's iteration for the polar decomposition and its backward stability, 2008.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

_MOST_OF_CHOLESKY = 100.0  # c up to which the Cholesky factor of I + c X^H X is accurate enough
_NEAR = 0.9
"""The least singular value from which on products alone, four steps of them at most, take less time: two steps with
Cholesky factorizations take as long, and a last step without loses fewer digits."""


class QdwhStep(NamedTuple):
    """One iteration (global)."""

    a: float
    b: float
    c: float

    @property
    def by_qr(self) -> bool:
        """Whether the iteration takes a QR factorization; otherwise a Cholesky factorization, or with c = 0 none."""
        return self.c > _MOST_OF_CHOLESKY

    def of(self, x: float) -> float:
        """The singular value that x becomes."""
        return x * (self.a + self.b * x * x) / (1 + self.c * x * x)


class NewtonStep(NamedTuple):
    """X := s X + t X^-H (global)."""

    s: float
    t: float


LAST = QdwhStep(1.5, -0.5, 0.0)
"""The step of Newton and Schulz for singular values close to 1, which corrects the last digits."""


def qdwh_steps(l: float, eps: float) -> list[QdwhStep]:
    """The iterations for singular values in [l, 1], after which all are 1 up to a few eps; the last one is `LAST`.

    >>> for l in (1e-16, 1e-8, 1e-2, 0.5):
    ...     "".join("S" if not step.c else "Q" if step.by_qr else "C" for step in qdwh_steps(l, 2.0**-52))
    'QQCCSSS'
    'QQCSSS'
    'QCSSS'
    'CSSS'
    """
    steps = list[QdwhStep]()
    while l < _NEAR:
        square = l * l
        d = (4 * (1 - square) / square**2) ** (1 / 3)
        root = sqrt(1 + d)
        a = root + sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
        b = (a - 1) ** 2 / 4
        steps.append(QdwhStep(a, b, a + b - 1))
        l = min(steps[-1].of(l), 1.0)
    while l < 1 - sqrt(eps) / 2:
        # X := X (3 - s^2 X^H X) s / 2, with the s for which l and 1 become the same number
        s = sqrt(3 / (1 + l + l * l))
        steps.append(QdwhStep(1.5 * s, -0.5 * s**3, 0.0))
        l = steps[-1].of(l)
    return [*steps, LAST]


def newton_steps(l: float, eps: float) -> list[NewtonStep]:
    """The steps for singular values in [l, 1], after which one of order 3 makes all of them 1 up to a few eps.

    >>> [len(newton_steps(l, 2.0**-52)) for l in (1e-16, 1e-8, 1e-2, 1.0)]
    [7, 6, 5, 0]
    """
    steps, most = list[NewtonStep](), 1.0
    while most / l > 1 + eps ** (1 / 3) / 2:
        s = 1 / sqrt(l * most)  # with it l and the largest value become the same number
        steps.append(NewtonStep(s / 2, 0.5 / s))
        l, most = 1.0, (s * most + 1 / (s * most)) / 2
    if steps:  # values in [1, most] become as far below 1 as above
        center = (1 + most) / 2
        steps[-1] = NewtonStep(steps[-1].s / center, steps[-1].t / center)
    return steps
