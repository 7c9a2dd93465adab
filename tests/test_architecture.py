"""Facts about the repository as a whole."""

import ast
import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import grimp
import numpy as np
import pytest
from scipy.sparse import coo_array, csgraph

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sheafprop"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODULES = [path.relative_to(PACKAGE) for path in SOURCES if path.name != "__init__.py"]
#: Modules that have no test file of their own yet, by folder. This may only get shorter.
UNTESTED: dict[str, str] = {}
#: Files that are longer than they may be, and modules that import each other: likewise.
LONG: set[str] = set()
CIRCLES: list[list[str]] = []
MAX_LINES = 400
TEXT = {
    ".cff",
    ".cfg",
    ".css",
    ".in",
    ".ini",
    ".json",
    ".md",
    ".py",
    ".rst",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}


def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def repository_files():
    """The files of the repository, without what runs and tools leave in a checkout."""
    left = {"build", "dist", "runs", "wandb", "lightning_logs", "data", "generated", "__pycache__"}
    for folder, folders, names in os.walk(ROOT):
        inner = Path(folder) != ROOT
        folders[:] = [
            name
            for name in folders
            if name in (".ci", ".github")
            or (name == "data" and inner)
            or not (name.startswith(".") or name in left or name.endswith(".egg-info"))
        ]
        # In a second working tree, .git is a file.
        yield from (Path(folder) / name for name in names if name != ".git")


def test_subpackages_import_only_what_they_may():
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_only_what_joins_processes_imports_torch_distributed():
    # Import contracts see torch as a whole.
    imported = re.compile(r"^\s*(?:import|from) torch\b.*\bdistributed\b", re.M)
    found = {
        path.relative_to(PACKAGE).parts[0]
        for path in SOURCES
        if imported.search(path.read_text(encoding="utf-8"))
    }
    assert "distributed" in found
    assert found <= {"distributed", "training", "cli"}


def test_every_subpackage_has_its_place_in_the_order():
    layers = setup_cfg()["importlinter:contract:subpackages"]["layers"]
    placed = {name.removeprefix("sheafprop.") for name in re.split(r"[\s|]+", layers) if name}
    subpackages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert placed == subpackages | modules


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


def proves_something(path):
    """Whether a file holds a test, and an assertion or a call of a check."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    functions = [n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    # Test cases of a template bring their tests along.
    bases = [ast.unparse(base) for n in nodes if isinstance(n, ast.ClassDef) for base in n.bases]
    calls = [ast.unparse(n.func).rpartition(".")[2] for n in nodes if isinstance(n, ast.Call)]
    asserts = any(isinstance(node, ast.Assert) for node in nodes) or any(
        name == "raises" or name.startswith(("assert_", "check_")) for name in calls
    )
    is_template = any(base.endswith(("Case", "Cases", "Tests")) for base in bases)
    return is_template or (asserts and any(name.startswith("test_") for name in functions))


def test_every_module_has_a_test_file_of_its_own():
    untested = {f"{folder}/{name}" for folder in UNTESTED for name in UNTESTED[folder].split()}
    missing = []
    for module in MODULES:
        path = ROOT / "tests" / module.parent / f"test_{module.name}"
        if not (path.is_file() and proves_something(path)):
            missing.append(module.with_suffix("").as_posix())
    assert [name for name in missing if name not in untested] == []


@pytest.mark.parametrize(
    ("text", "proves"),
    [
        ("", False),
        ("import sheafprop.errors\n", False),
        ("def test_it():\n    import sheafprop.errors\n", False),
        ("def helper():\n    assert 1\n", False),
        ("def test_it():\n    assert 1\n", True),
        ("def test_it():\n    with pytest.raises(ValueError):\n        int('x')\n", True),
        ("def test_it():\n    numpy.testing.assert_allclose(1, 1)\n", True),
        ("class TestIt(SheafTestCase):\n    name = 'x'\n", True),
    ],
)
def test_an_empty_test_file_does_not_count(tmp_path, text, proves):
    (tmp_path / "test_x.py").write_text(text)
    assert proves_something(tmp_path / "test_x.py") is proves


def test_long_files_say_why():
    found = []
    for path in SOURCES:
        lines = path.read_text(encoding="utf-8").splitlines()
        # The first docstring or comment stands before the imports.
        head = "\n".join(lines).partition("\nimport ")[0].partition("\nfrom ")[0]
        if len(lines) > MAX_LINES and "Long because " not in head:
            found.append(path.relative_to(PACKAGE).as_posix())
    assert [name for name in found if name not in LONG] == []


def test_no_module_imports_itself_through_others():
    graph = grimp.build_graph("sheafprop", exclude_type_checking_imports=True, cache_dir=None)
    names = sorted(graph.modules)
    number = {name: index for index, name in enumerate(names)}
    imported = [graph.find_modules_directly_imported_by(name) for name in names]
    head = [index for index, found in enumerate(imported) for _ in found]
    tail = [number[name] for found in imported for name in found]
    matrix = coo_array((np.ones(len(head)), (head, tail)), shape=(len(names), len(names)))
    count, label = csgraph.connected_components(matrix, connection="strong")
    groups = [[names[i] for i in np.flatnonzero(label == group)] for group in range(count)]
    assert len(head) > len(names)
    assert [group for group in groups if len(group) > 1 and group not in CIRCLES] == []
