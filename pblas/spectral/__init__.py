"""Eigenvalues and eigenvectors of symmetric and Hermitian matrices."""
