"""Checks the links and pictures inside a built site: python tests/harness/links.py docs/_build/html

Sphinx checks what the pages' sources refer to; this also finds targets that are missing in the pages themselves.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path


def broken(root: Path) -> list[str]:
    """Links of pages to files or places that do not exist, as "page: link"."""
    pages = {path.resolve(): path.read_text(encoding="utf-8") for path in root.rglob("*.html")}
    places = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    found = []
    for page, text in pages.items():
        for link in map(html.unescape, re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            if re.match(r"[a-z]+:|//", link):
                continue  # of another site
            name, _, place = link.partition("#")
            target = (page.parent / name.partition("?")[0]).resolve() if name else page
            if not target.exists() or (place and target in places and place not in places[target]):
                found.append(f"{page.relative_to(root.resolve())}: {link}")
    return found


def main() -> int:
    """Print broken links; the exit status is 1 if there are any."""
    links = broken(Path(sys.argv[1]))
    print(*links, sep="\n")
    return min(len(links), 1)


if __name__ == "__main__":
    sys.exit(main())
