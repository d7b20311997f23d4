"""Types of the options that BLAS names by a letter."""

from typing import Literal

Trans = Literal["N", "T", "C"]
"""The operand as it is, transposed, or conjugate transposed."""
Uplo = Literal["L", "U"]
"""The lower or the upper triangle."""
Side = Literal["L", "R"]
"""The side of the product on which the triangular or symmetric matrix stands."""
Diag = Literal["N", "U"]
"""Whether the diagonal is general, or all ones and not read."""
