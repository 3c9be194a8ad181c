"""What is wrong with a built site: links that lead nowhere, and what only a reader with a network would see.

    python tests/site.py FOLDER

The builder checks links between pages. This follows what it has written: links to files, and those that it made itself.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, and by which attribute; a link that is clicked may lead anywhere.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
IN_STYLES = re.compile(r"""url\(["']?((?:https?:)?//[^"')]+)""")


class Page(HTMLParser):
    """One page: the places in it that can be linked to, the links, and what is loaded with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        self.links += [found[name] for name in ("href", "src") if name in found]
        if tag in LOADED and LOADED[tag] in found:
            self.loaded.append(found[LOADED[tag]])


def faults(folder: Path) -> list[str]:
    """Return all that is wrong with the site in `folder`, a sentence each."""
    folder = folder.resolve()
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        lost = [link for link in dict.fromkeys(page.links) if not _leads_somewhere(link, path, folder, pages)]
        found += [f"{name}: {link} leads nowhere" for link in lost]
        found += [f"{name}: {url} comes from the network" for url in page.loaded if urlsplit(url).netloc]
    for path in sorted(folder.rglob("*.css")):
        urls = IN_STYLES.findall(path.read_text("utf-8"))
        found += [f"{path.relative_to(folder)}: {url} comes from the network" for url in urls]
    return found


def _leads_somewhere(link: str, path: Path, folder: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    # The page for what is not there may be shown at any depth, so its links begin at the root of the site.
    start = folder if parts.path.startswith("/") else path.parent
    target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_relative_to(folder) and target.exists() and not parts.fragment
    return not parts.fragment or unquote(parts.fragment) in pages[target].places


def main() -> None:
    """Print what is wrong, or where the site is."""
    folder = Path(sys.argv[1]).resolve()
    found = faults(folder)
    if found or not (folder / "index.html").exists():
        sys.exit("\n".join(found) or f"there is no site in {folder}")
    print(f"the site is in {folder}: open index.html")


if __name__ == "__main__":
    main()
