"""Names at the top of the package."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import sheafprop
import sheafprop.nn
import sheafprop.sheaf

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there():
    for name in sheafprop.__all__:
        assert getattr(sheafprop, name) is not None
    assert sorted(sheafprop.__dir__()) == sorted(sheafprop.__all__)
    assert set(sheafprop.__all__) == {*sheafprop._HOMES, "__version__"}


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(sheafprop.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in guarded.body
        for alias in node.names  # type: ignore[attr-defined]
    }
    assert set(seen) == set(sheafprop._HOMES)
    for name, module in seen.items():
        assert module.startswith(sheafprop._HOMES[name])


def test_layers_and_sheaves_that_readme_and_chapter_name_are_at_the_top():
    places = (ROOT / "README.md", ROOT / "docs" / "layer.md")
    text = "".join(path.read_text(encoding="utf-8") for path in places)
    named = set(re.findall(r"`([A-Za-z_]+)[`(.]", text)) | set(re.findall(r"(\w+)\(", text))
    library = {*sheafprop.nn.__all__, *sheafprop.sheaf.__all__, "SheafModel", "KnowledgeGraph"}
    assert {"HeteroGraph", "SheafDiffusion", "HarmonicExtension", "DenseSheaf"} <= named
    assert named & library <= set(sheafprop.__all__)
    imports = re.findall(r"from sheafprop import ([\w, ]+)", text)
    assert imports
    for line in imports:
        assert {name.strip() for name in line.split(",")} <= set(sheafprop.__all__)


def test_importing_the_package_imports_nothing_large():
    code = (
        "import sys, sheafprop; dir(sheafprop); "
        "large = {'torch', 'numpy', 'scipy', 'pandas', 'torch_geometric', 'lightning', 'numba'}; "
        "sys.exit(', '.join(sorted(large & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_other_names_are_refused():
    assert not hasattr(sheafprop, "SheafNothing")
