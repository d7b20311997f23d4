"""Every exception that pblas raises on purpose.

    PblasError
    ├── LayoutError       (ValueError)    a distribution or a local array that cannot be
    ├── DescriptorError   (ValueError)    matrices that do not fit each other
    ├── ArgumentError     (ValueError)    a scalar, a flag or an array that cannot be used
    │   └── PblasArgumentError            the same in a call of pblas.scalapack, with ScaLAPACK's number
    ├── DTypeError        (TypeError)     a dtype that pblas does not multiply, or two that differ
    ├── PlanError         (ValueError)    layouts that no plan serves
    ├── MismatchError     (RuntimeError)  ranks that made different calls
    ├── FileFormatError   (ValueError)    a matrix file that is truncated, foreign or unreadable
    ├── BackendError      (RuntimeError)  a backend, launcher or library that is missing or unfit
    ├── WorkspaceError    (MemoryError)   shared memory that does not suffice
    ├── ContextError      (RuntimeError)  a context that is closed or broken
    └── PeerTimeout       (TimeoutError)  a rank that did not arrive in time

A message says what, expected, got, where, remedy. An error that one rank finds is raised with the same
class and the same text on every rank of the context.
"""


class PblasError(Exception):
    """Base class of all pblas exceptions."""


class LayoutError(PblasError, ValueError):
    """A distribution, or a local array under it, that cannot be."""


class DescriptorError(PblasError, ValueError):
    """Matrices whose shapes or distributions do not fit each other."""


class ArgumentError(PblasError, ValueError):
    """A scalar, a flag or an array that an operation cannot use."""


class PblasArgumentError(ArgumentError):
    """An argument of a ScaLAPACK-style call that cannot be used.

    Args:
        text: which argument, what was expected and what was found.
        info: ScaLAPACK's INFO: -i for argument i of the call; -(100 i + j) for entry j of a descriptor that is argument
            i, counted as in descriptors of 11 entries.

    >>> PblasArgumentError("pdgemm: M must not be negative, got -1", -3).info
    -3
    """

    def __init__(self, text: str, info: int = 0) -> None:
        super().__init__(text)
        self.info = info


class DTypeError(PblasError, TypeError):
    """A dtype that pblas does not multiply, or operands of different dtypes."""


class PlanError(PblasError, ValueError):
    """Layouts that no plan serves; the text says what to change."""


class MismatchError(PblasError, RuntimeError):
    """Ranks that made different calls, or the same call with different arguments."""


class FileFormatError(PblasError, ValueError):
    """A matrix file that is truncated, foreign or cannot be read or written."""


class BackendError(PblasError, RuntimeError):
    """A backend, a launcher or a library that is missing or unfit."""


class WorkspaceError(PblasError, MemoryError):
    """Memory that does not suffice: shared by a node, of GPUs, or of one rank for a plan or a result."""


class ContextError(PblasError, RuntimeError):
    """A context that is closed or broken."""


class PeerTimeout(PblasError, TimeoutError):
    """A rank that did not arrive in time; the context is broken afterwards."""
