"""The code of a page of the documentation, as a reader would run it from top to bottom."""

import re
import textwrap
from pathlib import Path

DOC = Path(__file__).parents[1] / "doc"
BLOCK = re.compile(  # a directive, at whatever depth; its options; its lines
    r"^( *)\.\. (?:code-block:: python|plot::)\n((?:\1 {4}:.*\n)*)\n((?:\1 {4}.*\n|\n)+)",
    re.MULTILINE,
)
NAME = re.compile(r":name: (\w+)")


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return name and code of each block; blocks that need another package are named after it."""
    found = []
    for _, options, text in BLOCK.findall(page.read_text()):
        name = NAME.search(options)
        found.append((name[1] if name else "", textwrap.dedent(text)))
    return found


def run_page(page: Path, *packages: str) -> dict:
    """Run the blocks that need no package but ours and these; return the page's names."""
    names = {"__name__": "page"}
    code = "".join(text for name, text in blocks_of(page) if not name or name in packages)
    exec(compile(code, str(page), "exec"), names)
    return names
