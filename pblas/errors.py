"""The exceptions and the warnings of pblas.

    PblasError
    ├── LayoutError       (ValueError)    an invalid distribution, or a local array that does not fit it
    ├── DescriptorError   (ValueError)    matrices whose shapes or distributions do not fit each other
    ├── ArgumentError     (ValueError)    an invalid scalar, flag or array
    │   └── PblasArgumentError            an invalid argument of pblas.scalapack, with ScaLAPACK's INFO
    ├── OutOfRangeError   (IndexError)    an index of an element, a row or a column that the matrix does not have
    ├── DTypeError        (TypeError)     a dtype that pblas does not multiply, or two that differ
    ├── PlanError         (ValueError)    layouts for which there is no plan
    ├── MismatchError     (RuntimeError)  ranks that made different calls
    ├── FileFormatError   (ValueError)    a matrix file that is truncated, of another format or unreadable
    ├── BackendError      (RuntimeError)  a backend, launcher or library that is missing or cannot be used
    ├── WorkspaceError    (MemoryError)   too little memory
    ├── ContextError      (RuntimeError)  a context that is closed or broken
    └── PeerTimeout       (TimeoutError)  a rank that did not arrive in time

A message names the problem, the expected and the actual value, the place and the remedy. An error of one rank is raised
with the same class and the same text on every rank of the context. The category of all warnings is `PblasWarning`.
"""


class PblasError(Exception):
    """Base class of all pblas exceptions."""


class PblasWarning(UserWarning):
    """Category of all warnings of pblas, for `warnings.filterwarnings`."""


class LayoutError(PblasError, ValueError):
    """An invalid distribution, or a local array that does not fit its distribution."""


class DescriptorError(PblasError, ValueError):
    """Matrices whose shapes or distributions do not fit each other."""


class ArgumentError(PblasError, ValueError):
    """An invalid scalar, flag or array."""


class PblasArgumentError(ArgumentError):
    """An invalid argument of a ScaLAPACK-style call.

    Args:
        text: the message: the argument, its expected value and its actual value.
        info: ScaLAPACK's INFO: -i for argument i of the call; -(100 i + j) for entry j of a descriptor that is argument
            i, counted as in descriptors of 11 entries.

    >>> PblasArgumentError("pdgemm: M must not be negative, got -1", -3).info
    -3
    """

    def __init__(self, text: str, info: int = 0) -> None:
        super().__init__(text)
        self.info = info


class OutOfRangeError(PblasError, IndexError):
    """An index of an element, a row or a column that the matrix does not have."""


class DTypeError(PblasError, TypeError):
    """A dtype that pblas does not multiply, or operands of different dtypes."""


class PlanError(PblasError, ValueError):
    """Layouts for which there is no plan; the text names the change that helps."""


class MismatchError(PblasError, RuntimeError):
    """Ranks that made different calls, or the same call with different arguments."""


class FileFormatError(PblasError, ValueError):
    """A matrix file that is truncated, of another format, or cannot be read or written."""


class BackendError(PblasError, RuntimeError):
    """A backend, a launcher or a library that is missing or cannot be used."""


class WorkspaceError(PblasError, MemoryError):
    """Too little memory: shared memory of a node, memory of a GPU, or memory of a rank for a plan or a result."""

    shared = False
    """Whether shared memory of a node is lacking; messages can replace it (global)."""


class ContextError(PblasError, RuntimeError):
    """A context that is closed or broken."""


class PeerTimeout(PblasError, TimeoutError):
    """A rank that did not arrive in time; the context is broken afterwards."""
