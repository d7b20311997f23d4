"""Each test has a context of its own, which it may break."""

from tests.common.ranks import ctx  # noqa: F401 - a fixture
