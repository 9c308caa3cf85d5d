"""Check the built site: every link within it leads somewhere, and no page asks another host.

    python doc/check_site.py doc/_build/html

Prints what is broken, a line each, and ends with status 1 if there is any. Links to other sites
are not followed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
LOADING_RELATIONS = {"stylesheet", "icon", "preload", "shortcut icon"}
IN_STYLES = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^'\")]+)")
MADE_BY_SCRIPTS = {"", "top"}  # anchors that need no element


class Page(HTMLParser):
    """Anchors, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set(MADE_BY_SCRIPTS), set[str](), set[str]()
        text = path.read_text(encoding="utf-8")
        self.feed(text)
        self.loaded.update(IN_STYLES.findall(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag in LOADS and LOADS[tag] in found:
            self.loaded.add(found[LOADS[tag]])
        if tag == "link" and found.get("rel", "") in LOADING_RELATIONS:
            self.loaded.add(found["href"])


def is_elsewhere(url: str) -> bool:
    """Whether a link leaves the site."""
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme not in ("", "file")


def broken(site: Path) -> Iterator[str]:
    """A line for each link that leads nowhere, and for each file that another host has."""
    themes_own = site / "_static"  # has templates
    found = [path for path in sorted(site.rglob("*.html")) if themes_own not in path.parents]
    pages = {path: Page(path) for path in found}
    for path, page in pages.items():
        name = path.relative_to(site)
        for url in sorted(page.links | page.loaded):
            if is_elsewhere(url):
                if url in page.loaded and not url.startswith("data:"):
                    yield f"{name}: loads {url} from another host"
                continue
            parts = urlsplit(url)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{name}: {url} does not exist"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {url} has no such place on its page"
    for style in sorted(site.rglob("*.css")):
        for url in IN_STYLES.findall(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)}: loads {url} from another host"


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__)
        return 2
    found = list(broken(Path(sys.argv[1]).resolve()))
    print(*found, f"{len(found)} broken links and requests", sep="\n")
    return min(len(found), 1)


if __name__ == "__main__":
    raise SystemExit(main())
