"""Registers the operations behind the operators of matrices; `pblas.context` imports it."""

from pblas.matrices.operators import Operations, Operators
from pblas.operations.assignment import assign
from pblas.operations.elementwise import combined
from pblas.operations.matmul import pmatmul
from pblas.operations.products_with_arrays import product_with_array
from pblas.operations.redistribution import redistribute
from pblas.operations.reductions import diagonal, norm, reduction, trace

Operators.register(
    Operations(
        pmatmul=pmatmul,
        product_with_array=product_with_array,
        combined=combined,
        redistribute=redistribute,
        assign=assign,
        reduction=reduction,
        trace=trace,
        diagonal=diagonal,
        norm=norm,
    )
)
