"""The code of a page of the documentation, as a reader would run it from top to bottom."""

import re
from pathlib import Path

DOC = Path(__file__).parents[1] / "doc"
BLOCK = re.compile(
    r"^\.\. (?:code-block:: python|plot::)\n((?: {4}:.*\n)*)\n((?: {4}.*\n|\n)+)", re.MULTILINE
)
NAME = re.compile(r":name: (\w+)")


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return name and code of each block; blocks that need another package are named after it."""
    found = []
    for options, text in BLOCK.findall(page.read_text()):
        name = NAME.search(options)
        found.append((name[1] if name else "", re.sub(r"^ {4}", "", text, flags=re.MULTILINE)))
    return found


def run_page(page: Path, *packages: str) -> dict:
    """Run the blocks that need no package but ours and these; return the page's names."""
    names = {"__name__": "page"}
    code = "".join(text for name, text in blocks_of(page) if not name or name in packages)
    exec(compile(code, str(page), "exec"), names)
    return names
