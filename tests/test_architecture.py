"""Facts about the repository as a whole."""

import ast
import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sheafprop"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TEXT = {".cfg", ".in", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}


def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def repository_files():
    """The files of the repository, without what runs and tools leave in a checkout."""
    left = {"build", "dist", "runs", "wandb", "lightning_logs", "data", "__pycache__"}
    for folder, folders, names in os.walk(ROOT):
        inner = Path(folder) != ROOT
        folders[:] = [
            name
            for name in folders
            if name == ".ci"
            or (name == "data" and inner)
            or not (name.startswith(".") or name in left or name.endswith(".egg-info"))
        ]
        yield from (Path(folder) / name for name in names)


def test_rooms_import_only_what_they_may():
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_every_room_has_its_place_in_the_order():
    layers = setup_cfg()["importlinter:contract:rooms"]["layers"]
    placed = {name.removeprefix("sheafprop.") for name in re.split(r"[\s|]+", layers) if name}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert placed == rooms | modules


def test_no_file_names_a_place_on_some_machine():
    machine = re.compile(r"/(?:work|root|home)/")
    neighbour = re.compile(r"\bshared" + "/")
    found = []
    for path in repository_files():
        if path.suffix not in TEXT and path.suffix:
            continue
        relative = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        if machine.search(text) or (
            relative.parts[0] not in (".ci", "scripts") and neighbour.search(text)
        ):
            found.append(str(relative))
    assert found == []


def test_only_sheaves_know_the_kinds_of_maps():
    asked = re.compile(
        r"(isinstance|issubclass|type)\([^()]*(\([^()]*\)[^()]*)*\b(Identity|Diagonal|Dense)Sheaf"
    )
    found = [path for path in SOURCES if asked.search(path.read_text(encoding="utf-8"))]
    assert [str(path) for path in found if path.parent.name != "sheaf"] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_public_classes_are_documented(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    assert path.name == path.name.lower()
