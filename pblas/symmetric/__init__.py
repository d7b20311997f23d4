"""Products whose result or operand is symmetric: syrk, syr2k, symm and their Hermitian twins."""
