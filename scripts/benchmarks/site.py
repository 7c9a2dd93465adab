"""The internal links of a built documentation site."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken_links"]


class _Page(HTMLParser):
    """The links of a page, the places in it, and what it names without leading there."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.unresolved: list[str] = []
        # The title of the reference that is open, and whether a link surrounds it.
        self._depth = 0
        self._code: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for key in ("href", "src"):
            if values.get(key):
                self.links.append(str(values[key]))
        for key in ("id", "name"):
            if values.get(key):
                self.places.add(str(values[key]))
        self._depth += tag == "a"
        if tag == "code" and "xref" in (values.get("class") or "").split() and not self._depth:
            self._code = ""

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "a"
        if tag == "code" and self._code is not None:
            self.unresolved.append(self._code)
            self._code = None

    def handle_data(self, data: str) -> None:
        if self._code is not None:
            self._code += data


def broken_links(site: Path) -> tuple[list[str], int]:
    r"""Returns the internal links of a site that lead nowhere, and the number of all of them.

    A link leads somewhere where its file is in the site and, for ``page.html#place``, the page has
    that place. References to names of ``sheafprop`` that Sphinx could not resolve are among the
    broken ones.

    Args:
        site (Path): The folder of the HTML files.
    """
    site = site.resolve()
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    broken, count = [], 0
    for path, page in pages.items():
        where = path.relative_to(site).as_posix()
        broken += [f"{where}: {name}" for name in page.unresolved if name.startswith("sheafprop.")]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            has_place = not place or target not in pages or place in pages[target].places
            if not target.is_file() or not has_place:
                broken.append(f"{where}: {link}")
    return broken, count
