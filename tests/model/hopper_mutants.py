"""Mutants of the Hopper kernel: it signals data that are not stored yet, since the stores are delayed."""

from pblas.backends.nvshmem.hopper import source

_LATE = "for (const time_ns end = now() + 20000000; now() < end;) {}"  # peers that share its GPU run meanwhile
MUTANTS = {
    "signals before the stores complete": (
        ("stores_rows_of(consumer) && load_acquire(smem.stored_count(consumer)) < expected", "false"),
        ("        while (next.width) {\n", f"        {_LATE}\n        while (next.width) {{\n"),
    )
}
"""For each mutant, replacements in the source."""


def mutated(name: str) -> str:
    """The CUDA C++ of a mutant."""
    text = source()
    for before, after in MUTANTS[name]:
        assert text.count(before) == 1, f"the kernel has changed; this is not in it, or not once: {before}"
        text = text.replace(before, after)
    return text
