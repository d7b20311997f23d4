"""numpy.roll(A, shift, axis=0) as an operation of pblas; docs/architecture/adding_an_operation.md explains it."""
