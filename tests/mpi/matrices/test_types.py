"""The calls whose types checkers verify are calls that work."""

import pytest

from pblas import Context
from tests.harness import typed_calls

pytestmark = pytest.mark.mpi
SETTINGS = ("shared",)


def test_typed_calls(ctx: Context) -> None:
    typed_calls.calls(ctx)
    with pytest.raises(Exception, match="no_such_method"):
        typed_calls.without(ctx.eye(4))
