"""QR of one panel whose rows are on the ranks of a process column, by a tree (TSQR), as one block of reflectors.

    W[i] = Q[i] R[i]                         (the rows of each rank)
    [R[i]; R[j]] = Q[i, j] [R'; 0]           (pairs of ranks, up a tree to the rank of the diagonal block, which gets R)
    Q[:nb] - S = V[:nb] U                    (there: the first nb rows of Q, signs S; an LU factorization)
    T = -U S V[:nb]^-H, R := S R
    V = (Q - [S; 0]) U^-1                    (down the tree, which is linear: columns of Q U^-1 in place of Q)

I - V T V^H is the block of reflectors whose first columns are Q S, as LAPACK has it: there are 2 ceil(log2 P) messages
for a panel, in place of as many for each column. The pivots of the LU factorization are 1 at least, by the choice of S.

Sources: Demmel, Grigori, Hoemmen, Langou, Communication-optimal parallel and sequential QR, 2012; Ballard, Demmel,
Grigori, Jacquelin, Knight, Nguyen, Reconstructing Householder vectors from TSQR, 2015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.factor.grid_blocks import TAG_TREE
from pblas.factor.grid_pivots import tree
from pblas.factor.grid_qr_plan import INNER

if TYPE_CHECKING:
    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_qr_panels import QrPanels

_FEW = 16  # columns that are eliminated one by one


class PanelReflectors:
    """Factors panels of one process column, and writes their T."""

    def __init__(self, panels: QrPanels, backend: HostRanks) -> None:
        self._panels, self._arrays = panels, backend.arrays
        self._hosts, self._channel = backend.host_arrays, backend.host_channel

    def factor(self, k: int, x: Array) -> None:
        """X := R and V of panel k, for its rows on this rank: **collective** over the process column."""
        ring = self._panels.column_ring(k, self._panels.column)
        if len(x) and len(ring) == 1:
            self._arrays.qr(x, self._panels.header(k))
        elif len(x):
            self._factor_by_tree(k, x, ring)

    def _factor_by_tree(self, k: int, x: Array, ring: list[int]) -> None:
        panels, arrays, hosts, (rows, n) = self._panels, self._arrays, self._hosts, x.shape
        parent, children = tree(ring.index(panels.rank), len(ring))
        count = min(rows, n)
        inner = min(INNER, count) if arrays.traits.blocking else count  # of T of a GPU
        # W[i] = Q[i] R[i]
        t = panels.buffer("T of rows", 0, inner, count)
        arrays.qr(x, t)
        r = self._zeros("R", n, n)
        r[:count] = np.triu(arrays.to_host(x[:count]))
        # [R[i]; R[j]] = Q[i, j] [R'; 0]
        merges = []
        for i in children:
            v, t_i = self._buffer(f"R of {i}", n, n), self._buffer(f"T of {i}", min(INNER, n), n)
            self._receive(k, v, ring[i])
            hosts.qr_stacked(r, v, t_i, triangular=True)
            merges.append((i, v, t_i))
        # down: columns of Q for this rank, and T below them
        down = self._buffer("down", 2 * n, n)
        if parent is None:
            down[:n] = np.eye(n)
        else:
            self._send(k, r, ring[parent])
            self._receive(k, down, ring[parent])
        top, of_children = down[:n], {}
        for i, v, t_i in reversed(merges):
            # [Q[i]; Q[j]] = Q[i, j] [Q[i]; 0]
            of_children[i] = self._zeros(f"down to {i}", 2 * n, n)
            hosts.multiply_q_stacked(v, t_i, top, of_children[i][:n], adjoint=False, triangular=True)
        # Q[i] := Q[i] [Q'; 0]
        q = panels.buffer("Q", 0, rows, n)
        arrays.scale(0, q)
        arrays.from_host(top[:count], q[:count])
        arrays.multiply_q(x[:, :count], t, q, adjoint=False)
        if parent is None:
            self._reconstruct(q, r, down[n:], [part[:n] for part in of_children.values()])
        arrays.from_host(down[n:], panels.header(k))
        for i, part in of_children.items():
            part[n:] = down[n:]
            self._send(k, part, ring[i])
        arrays.assign(q, x)

    def _reconstruct(self, q: Array, r: Array, t: Array, others: list[Array]) -> None:
        """Q := V with S R above its diagonal, and Q U^-1 of the others, on the rank of the diagonal block; T."""
        n, arrays, hosts = q.shape[1], self._arrays, self._hosts
        top, signs = arrays.to_host(q[:n]), np.empty(n)
        # Q[:nb] - S = V[:nb] U
        signed_lu(hosts, top, signs)
        # V[nb:] = Q[nb:] U^-1
        arrays.from_host(top, q[:n])
        arrays.trsm(q[:n].T, q[n:].T, uplo="L")
        for part in others:
            hosts.trsm(top.T, part.T, uplo="L")
        # T = -U S V[:nb]^-H, as T^T = conj(V[:nb])^-1 (-U S)^T
        t[...] = np.triu(top * -signs)
        hosts.trsm(top, t.T, uplo="L", unit=True, conj=True)
        t[...] = np.triu(t)
        # S R
        upper = np.triu_indices(n)
        top[upper] = (r * signs[:, None])[upper]
        arrays.from_host(top, q[:n])

    def _buffer(self, name: str, rows: int, columns: int) -> Array:
        return self._panels.buffer(name, 0, rows, columns, on_host=True)

    def _zeros(self, name: str, rows: int, columns: int) -> Array:
        x = self._buffer(name, rows, columns)
        x[...] = 0
        return x

    def _send(self, k: int, x: Array, rank: int) -> None:
        self._panels.wait(self._channel.send(x, rank, TAG_TREE).done, k)

    def _receive(self, k: int, x: Array, rank: int) -> None:
        self._panels.wait(self._channel.receive(x, rank, TAG_TREE).done, k)


def signed_lu(arrays: Device, x: Array, signs: Array) -> None:
    """X := V and U with X - S = V U, the diagonal of V is 1, and signs S, so that the pivots are 1 at least.

    X is square, and a part of a matrix with orthonormal columns. It is halved until few columns are left.

    >>> from pblas.backends.cpu.arrays import HostArrays
    >>> x, signs = np.array([[0.6, -0.8], [0.8, 0.6]], order="F"), np.zeros(2)
    >>> signed_lu(HostArrays(), x, signs); x.round(9).tolist(), signs.tolist()
    ([[1.6, -0.8], [0.5, 2.0]], [-1.0, -1.0])
    """
    n = len(x)
    if n <= _FEW:
        with np.errstate(all="ignore"):  # infinities and NaN become the result
            for j in range(n):
                signs[j] = 1 if x[j, j].real <= 0 else -1
                x[j, j] -= signs[j]
                x[j + 1 :, j] /= x[j, j]
                x[j + 1 :, j + 1 :] -= np.outer(x[j + 1 :, j], x[j, j + 1 :])
        return
    top, rest = slice(n // 2), slice(n // 2, n)
    signed_lu(arrays, x[top, top], signs[top])
    # V[rest, top] = X[rest, top] U[top, top]^-1, as V[rest, top]^T = U[top, top]^-T X[rest, top]^T
    arrays.trsm(x[top, top].T, x[rest, top].T, uplo="L")
    # U[top, rest] = V[top, top]^-1 X[top, rest]
    arrays.trsm(x[top, top], x[top, rest], uplo="L", unit=True)
    # X[rest, rest] -= V[rest, top] U[top, rest]
    arrays.gemm(-1, x[rest, top], x[top, rest], 1, x[rest, rest])
    signed_lu(arrays, x[rest, rest], signs[rest])
