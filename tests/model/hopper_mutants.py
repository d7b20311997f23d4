"""Mutants of the Hopper kernel: it signals data that are not stored yet, since the stores are delayed."""

from pblas.backends.nvshmem.hopper.source import source

_LATE = "for (const time_ns end = now() + 20000000; now() < end;) {}"  # peers that share its GPU run meanwhile
MUTANTS = {
    "parts told before they are stored": (
        ("keeps(consumer) && load_counter(memory.stored(consumer)) < confirmed", "false"),
        ("        while (next.width) {\n", f"        {_LATE}\n        while (next.width) {{\n"),
    )
}
"""What of the text becomes what."""


def mutated(name: str) -> str:
    """CUDA C++ of one of them."""
    text = source()
    for before, after in MUTANTS[name]:
        assert text.count(before) == 1, f"the kernel has changed; this is not in it, or not once: {before}"
        text = text.replace(before, after)
    return text
