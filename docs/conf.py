"""The configuration of the documentation site; ``scripts/docs.sh`` builds it."""

import os
import posixpath
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import sheafprop  # noqa: E402

project = "sheafprop"
author = "The sheafprop authors"
copyright = f"2026, {author}"
version = release = sheafprop.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["generated/gallery/*.py", "generated/gallery/*.ipynb", "_templates"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"sheafprop {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_inherit_docstrings = False  # those of frameworks refer to their own manuals
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name the types
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Shapes"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["generated/gallery"],
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "min_reported_time": 1e9,
    "show_memory": False,
    "show_signature": False,
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,
}

# Lightning and W&B ask for nothing and send nothing while the examples run.
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Pages whose text is a document outside this folder, by the path of the document.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "scripts/results/README.md": "measurements.md",
}
#: What else such documents link to.
PLACES = {"examples": "generated/gallery/index.rst", "LICENSE": "index.md#license"}


def lead_links(text: str, folder: str) -> str:
    """Returns a document with its links as they are on the site.

    Args:
        text (str): The document.
        folder (str): Its folder, relative to the root of the repository.
    """

    def lead(match: re.Match[str]) -> str:
        path, mark, heading = match[1].partition("#")
        place = posixpath.normpath(posixpath.join(folder, path))
        target = (PAGES | PLACES).get(place, posixpath.relpath(place, "docs"))
        return f"]({target}{mark}{heading})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", lead, text)


def read_source(app, docname: str, source: list[str]) -> None:
    """Puts the documents of :data:`PAGES` in the place of their pages, and leads links."""
    if docname.startswith("generated/"):
        return
    for document, page in PAGES.items():
        if page == f"{docname}.md":
            text = (ROOT / document).read_text(encoding="utf-8")
            source[0] = lead_links(text, posixpath.dirname(document)) + "\n" + source[0]
            return
    source[0] = lead_links(source[0], "docs")


def resolve_short_name(app, env, node, contnode):
    """Resolves ``sheafprop.X`` to the name in its subpackage."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("sheafprop."):
        return None
    name, _, rest = target.removeprefix("sheafprop.").partition(".")
    home = sheafprop._HOMES.get(name)
    if home is None:
        return None
    full = f"{home}.{name}" + (f".{rest}" if rest else "")
    domain = env.get_domain("py")
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], full, node, contnode
    )


def drop_builtins(app, env) -> None:
    """Members that Python itself wrote have no source to show."""
    getattr(env, "_viewcode_modules", {}).pop("builtins", None)


def setup(app) -> None:
    app.connect("env-updated", drop_builtins)
    app.connect("source-read", read_source)
    app.connect("missing-reference", resolve_short_name)
