"""The configuration of the site: every document has a page, and links lead to pages."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def conf():
    return runpy.run_path(str(DOCS / "conf.py"))


@pytest.mark.parametrize(
    ("link", "folder", "expected"),
    [
        ("[a](docs/layer.md#sheaves)", "", "[a](layer.md#sheaves)"),
        ("[a](../README.md)", "docs", "[a](index.md)"),
        ("[a](../../docs/results.md#protocols)", "scripts/results", "[a](results.md#protocols)"),
        ("[a](scripts/results/README.md)", "", "[a](measurements.md)"),
        ("![a](docs/overview.png)", "", "![a](overview.png)"),
        ("[a](layer.md)", "docs", "[a](layer.md)"),
        ("[a](examples)", "", "[a](generated/gallery/index.rst)"),
        ("[a](https://x.org/docs/a.md)", "", "[a](https://x.org/docs/a.md)"),
        ("[a](#limits)", "", "[a](#limits)"),
    ],
)
def test_links_lead_to_the_pages_of_the_site(conf, link, folder, expected):
    assert conf["lead_links"](link, folder) == expected


def test_every_chapter_is_in_the_contents(conf):
    listed = set(re.findall(r"^[\w/]+$", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE))
    chapters = {path.stem for path in [*DOCS.glob("*.md"), *DOCS.glob("*.rst")]} - {"index"}
    assert listed == chapters | {"generated/gallery/index"}


def test_documents_outside_have_a_page_each(conf):
    for document, page in conf["PAGES"].items():
        assert (ROOT / document).is_file()
        assert (DOCS / page).is_file()
        source = [""]
        conf["read_source"](None, page.removesuffix(".md"), source)
        assert source[0].startswith((ROOT / document).read_text("utf-8")[:20])


def test_every_public_subpackage_is_in_the_reference():
    listed = set(re.findall(r"^   (sheafprop[.\w]*)$", (DOCS / "api.rst").read_text("utf-8"), re.M))
    own = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "sheafprop").rglob("__init__.py")
    }
    # What these have is documented with the subpackages around them.
    assert listed == own - {
        "sheafprop",
        "sheafprop.data.datasets",
        "sheafprop.data.formats",
        "sheafprop.cli",
        "sheafprop.configs",
        "sheafprop.kernels",
        "sheafprop.nn.solvers",
    }
