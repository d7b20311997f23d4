"""Registers the operations behind the operators of matrices; `pblas.context` imports it."""

from pblas.arrays.elementwise import combined
from pblas.arrays.reductions import diagonal, norm, reduction, trace
from pblas.arrays.stacking import assign
from pblas.matmul.api import pmatmul
from pblas.matmul.with_arrays import product_with_array
from pblas.matrices.operators import Operations, Operators
from pblas.redistribution.api import redistribute

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
