"""Registers the operations behind the operators of matrices; `pblas.context` imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas._numpy import numpy_function, ufunc
from pblas.arrays.elementwise import combined
from pblas.arrays.reductions import reduction
from pblas.arrays.selection import assign, select
from pblas.matmul.api import pmatmul
from pblas.matmul.with_arrays import product_with_array
from pblas.matrices.files import save
from pblas.matrices.operators import Operations, Operators
from pblas.redistribution.api import redistribute

if TYPE_CHECKING:
    from pblas.arrays.namespace import Namespace
    from pblas.matrices.matrix import DistMatrix


def namespace(a: DistMatrix, api_version: str | None) -> Namespace:
    """The namespace of the array API, whose module few programs load; see `DistMatrix.__array_namespace__` (local)."""
    from pblas.arrays.namespace import Namespace

    return Namespace.of(a, api_version)


def plot(a: DistMatrix, path: object, spy: object) -> None:
    """**Collective.** Draw a matrix, by a module that few programs load; see `DistMatrix.plot`."""
    from pblas.matrices import plotting

    plotting.plot(a, path, spy)


Operators.register(
    Operations(
        pmatmul=pmatmul,
        product_with_array=product_with_array,
        combined=combined,
        ufunc=ufunc,
        numpy_function=numpy_function,
        namespace=namespace,
        redistribute=redistribute,
        select=select,
        assign=assign,
        reduction=reduction,
        save=save,
        plot=plot,
    )
)
