"""The code blocks of the documentation: which ones run, and the reason why the others do not.

A page says what a block is by its language:

* `python`: runs on any number of ranks. The blocks of one page are one script.
* `sh`: runs in bash, beside a file with the page's script.
* `text`: what the page's script prints on 4 ranks, word for word.
* `{directive}`: runs when Sphinx builds the page.

A block of another kind, or one that cannot run in the tests, has a comment in the line before it:

    <!-- not run: needs GPUs -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh", "text")
PAGES = tuple(
    sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
)
"""All pages of the site."""

_FENCE = re.compile(r"^ *(`{3,})([^`\s]*) *(.*)$")
_MARK = re.compile(r"^ *<!-- not run: (.+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page.

    Args:
        page: path of the page, relative to the repository.
        language: the first word after the fence.
        argument: the rest of that line, which directives read.
        body: the lines of the block, without the indentation of the fence.
        line: number of the first line of the body, from 1.
        reason: why the block does not run; "" if it does.
    """

    page: str
    language: str
    argument: str
    body: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page, in order. A block inside another one, as in a directive, is a part of that."""
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    blocks, start = [], 0
    while start < len(lines):
        opening = _FENCE.match(lines[start])
        if opening is None:
            start += 1
            continue
        fence, language, argument = opening.groups()
        closing = re.compile(f"^ *{fence}`* *$")
        end = next(i for i in range(start + 1, len(lines)) if closing.match(lines[i]))
        indent = len(lines[start]) - len(lines[start].lstrip(" "))
        body = "".join(f"{line[indent:]}\n" for line in lines[start + 1 : end])
        mark = _MARK.match(lines[start - 1]) if start else None
        blocks.append(Block(page, language, argument, body, start + 2, mark[1] if mark else ""))
        start = end + 1
    return blocks


def running(page: str, language: str) -> list[Block]:
    """The blocks of a page in one language that run."""
    return [block for block in blocks_of(page) if block.language == language and not block.reason]
