"""What all tests share: the ranks agree (tests/harness/plugin.py), and Hypothesis draws the same on every rank."""

from hypothesis import Phase, settings

pytest_plugins = ["tests.harness.plugin"]

# No database and no shrinking: a rank that replays an example alone waits in its first collective call.
settings.register_profile(
    "pblas", derandomize=True, deadline=None, database=None, phases=[Phase.explicit, Phase.generate], print_blob=False
)
settings.load_profile("pblas")
