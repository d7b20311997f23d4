"""The eigenproblem of diag(d) + rho z z^T: deflation, roots of the secular equation, and vectors to machine precision.

All ranks of a merge deflate by themselves, by elementwise operations that give equal bits on any processor.

Source: Cuppen, A divide and conquer method for the symmetric tridiagonal eigenproblem, 1981; Gu, Eisenstat, A stable
    and efficient algorithm for the rank-one modification of the symmetric eigenproblem, 1994; LAPACK, xLAED2, xLAED3.
"""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pblas.backends.cpu import lapack

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class Rotation(NamedTuple):
    """x, y := c x + s y, c y - s x for the vectors x and y with these numbers."""

    x: int
    y: int
    c: float
    s: float


class Deflated(NamedTuple):
    """A problem without the vectors whose eigenvalues are known.

    Args:
        poles: d of the others, strictly ascending.
        weights: z of the others.
        rho: the factor, positive.
        kept: the numbers of the others among all vectors, in the order of the poles.
        known: the numbers of the vectors that are left out, whose eigenvalues are `values`.
        rotations: of vectors, before the others are multiplied.
    """

    poles: Array
    weights: Array
    rho: float
    kept: Array
    known: Array
    values: Array
    rotations: list[Rotation]


def deflated(d: Array, z: Array, rho: float, first: int) -> Deflated:
    """Leave out vectors with a negligible z, and rotate z of one of two equal d away.

    Args:
        d: eigenvalues of both halves, the `first` ones ascending, and the others.
        z: the last row of the vectors of the first half, and the first row of those of the second.
        rho: the element of T between the halves.
        first: number of the first half.

    >>> problem = deflated(np.array([1.0, 1.0]), np.array([1.0, 1.0]), 0.5, 1)
    >>> values, weights = (x.round(6).tolist() for x in (problem.values, problem.weights))
    >>> problem.kept.tolist(), problem.known.tolist(), values, weights
    ([1], [0], [1.0], [1.0])
    """
    n, real = len(d), d.dtype.type
    signs = np.where(np.arange(n) < first, 1, -1 if rho < 0 else 1).astype(d.dtype)
    values, z, rho = d.copy(), z * signs * real(np.sqrt(0.5)), abs(2 * float(rho))
    order = np.argsort(d, kind="stable").tolist()
    tolerance = 4 * np.finfo(d.dtype).eps * max(np.abs(d).max(initial=0), np.abs(z).max(initial=0))
    kept, known, rotations = list[int](), list[int](), list[Rotation]()
    previous: int | None = None
    for j in order:
        if rho * abs(z[j]) <= tolerance:
            known.append(j)
            continue
        if previous is not None:
            # rotate z[previous] to 0 if that changes the matrix negligibly
            i, length = previous, real(hypot(float(z[j]), float(z[previous])))
            c, s = z[j] / length, -z[i] / length
            if abs((values[j] - values[i]) * c * s) <= tolerance:
                z[i], z[j] = 0, length
                rotations.append(Rotation(i, j, c, s))
                values[i], values[j] = values[i] * c**2 + values[j] * s**2, values[i] * s**2 + values[j] * c**2
                known.append(i)
            else:
                kept.append(i)
        previous = j
    if previous is not None:
        kept.append(previous)
    numbers, others = np.array(kept, np.intp), np.array(known, np.intp)
    return Deflated(values[numbers], z[numbers], rho, numbers, others, values[others], rotations)


class Roots:
    """Some roots of 1 + rho sum_i z_i^2 / (d_i - x) = 0, numbered from 0, and their distances from all poles."""

    def __init__(self, problem: Deflated, numbers: range) -> None:
        poles, weights = problem.poles, problem.weights
        self.numbers = numbers
        self.delta: Array = np.empty((len(poles), len(numbers)), poles.dtype, "F")
        self.values: Array = np.empty(len(numbers), poles.dtype)
        self.info: int = lapack.laed4(numbers, poles, weights, problem.rho, self.delta, self.values)

    def distances(self, problem: Deflated, numbers: range) -> Array:
        """The distances of all poles from the roots with these numbers; those that are not here are computed again."""
        start, stop = max(numbers.start, self.numbers.start), min(numbers.stop, self.numbers.stop)
        if start >= stop:
            return Roots(problem, numbers).delta
        here = self.delta[:, start - self.numbers.start : stop - self.numbers.start]
        if stop - start == len(numbers):
            return here
        delta = np.empty((len(problem.poles), len(numbers)), problem.poles.dtype, "F")
        delta[:, start - numbers.start : stop - numbers.start] = here
        for part in (range(numbers.start, start), range(stop, numbers.stop)):
            delta[:, part.start - numbers.start : part.stop - numbers.start] = Roots(problem, part).delta
        return delta

    def product(self, problem: Deflated) -> Array:
        """For each pole the product of its distances from these roots, over those from the other poles."""
        product = np.ones_like(problem.poles)
        for j, delta in zip(self.numbers, self.delta.T, strict=True):
            gaps = problem.poles - problem.poles[j]
            gaps[j] = 1
            product *= delta / gaps
        return product


def corrected(problem: Deflated, product: Array) -> Array:
    """The z whose secular equation has exactly the computed roots; `product` is over all of them.

    With it the vectors are orthogonal, however close the roots are.
    """
    z: Array = np.copysign(np.sqrt(-product), problem.weights)
    return z


def vectors(z: Array, delta: Array, rows: Array) -> Array:
    """These rows of the eigenvectors that belong to the columns of delta, which are z / delta, of length 1.

    Delta is overwritten.
    """
    if len(z) > 2:  # else LAPACK gives the vectors instead of distances
        for j, column in enumerate(delta.T):
            x = z / column
            delta[:, j] = x / np.sqrt(x @ x)
    taken: Array = delta.T.take(rows, axis=1).T
    return taken
