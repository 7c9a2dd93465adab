"""The wheel, built from the source archive and used where the checkout cannot be imported."""

import configparser
import json
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT_FROM = (
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "configs",
    "pyproject.toml",
    "scripts",
    "setup.cfg",
    "sheafprop",
)


def run(*arguments, **options):
    done = subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # From a copy: a build leaves files in its source folder and takes up what older ones left.
    source = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", source, "--outdir", source / "dist")
    assert len(list((source / "dist").glob("sheafprop-*.tar.gz"))) == 1
    (path,) = (source / "dist").glob("sheafprop-*.whl")
    return path


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """Runs a command in a folder outside the checkout, with the wheel before all else."""
    site = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
    folder = tmp_path_factory.mktemp("elsewhere")
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}

    def call(*arguments):
        return run(*arguments, cwd=folder, env=environment)

    call.site, call.folder = site, folder
    return call


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "sheafprop").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {
        "sheafprop/" + path.relative_to(ROOT).as_posix()
        for path in (ROOT / "configs").rglob("*.yaml")
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected, (
        "is a new subpackage missing from 'packages' or 'package_data' in setup.cfg?"
    )
    assert {
        "sheafprop/py.typed",
        "sheafprop/report/published.json",
        "sheafprop/data/datasets/grail_files.json",
        "sheafprop/configs/experiment/umls_rotate.yaml",
    } <= names


def test_bench_and_scripts_stay_in_the_clone(wheel, elsewhere):
    """The source that the wheel is built from has them; what is installed has not."""
    assert (ROOT / "scripts" / "benchmarks" / "cells.py").is_file()
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {
        "sheafprop"
    }
    assert [name for name in names if "benchmarks" in name or "scripts" in name] == []
    code = (
        "import importlib.util as u, sheafprop\n"
        "print(sheafprop.__file__, u.find_spec('benchmarks'), u.find_spec('scripts'))"
    )
    file, *found = elsewhere(sys.executable, "-c", code).split()
    assert Path(file).parent == elsewhere.site / "sheafprop"
    assert found == ["None", "None"]


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    assert any(name.endswith("/LICENSE") for name in files)
    assert metadata["Requires-Python"] == ">=3.11"
    assert "MIT" in (metadata["License-Expression"] or metadata["License"])
    assert {"pykeen", "sparse", "test", "tune"} <= set(metadata.get_all("Provides-Extra"))
    required = metadata.get_all("Requires-Dist")
    assert any("lightning" in line and "!=2.6.2" in line and "!=2.6.3" in line for line in required)


def test_build_file_has_only_the_build_system():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "pyproject.toml", encoding="utf-8")
    assert parser.sections() == ["build-system"]


def test_the_installed_package_finds_its_own_files(elsewhere):
    code = (
        "import importlib.resources as r, sheafprop, sheafprop.nn, sheafprop.pretrained\n"
        "from sheafprop.config_files import config_root\n"
        "print(sheafprop.__file__)\n"
        "print(config_root())\n"
        "print(len(list(config_root().rglob('*.yaml'))))\n"
        "print(r.files('sheafprop.report').joinpath('published.json').is_file())"
    )
    file, configs, count, published = elsewhere(sys.executable, "-c", code).splitlines()
    package = elsewhere.site / "sheafprop"
    assert Path(file).parent == package
    assert Path(configs) == package / "configs"
    assert int(count) == len(list((ROOT / "configs").rglob("*.yaml"))) > 10
    assert published == "True"


def test_the_checkout_finds_its_configurations():
    from sheafprop.config_files import config_root

    assert (config_root() / "experiment" / "umls_rotate.yaml").is_file()


def test_the_command_answers(elsewhere):
    script = elsewhere.site / "bin" / "sheafprop"
    assert "usage: sheafprop" in elsewhere(script, "--help")
    version = elsewhere(sys.executable, "-c", "import sheafprop; print(sheafprop.__version__)")
    assert elsewhere(script, "--version") == f"sheafprop {version}"


def test_a_packaged_configuration_trains_and_tests(elsewhere):
    config = "configs/experiment/umls_rotate.yaml"
    fit = ["fit", "--config", config, "--run.group=here", "--trainer.max_epochs=1"]
    code = (
        "from sheafprop.cli.main import main\n"
        f"assert main({fit}) == main(['test', '--run', 'here/rotate']) == 0"
    )
    elsewhere(sys.executable, "-c", code)
    run_folder = elsewhere.folder / "here" / "rotate"
    record = json.loads((run_folder / "metrics.json").read_text(encoding="utf-8"))
    assert {row["protocol"] for row in record["test"]} == {"full", "sampled50"}
    assert "full" in (run_folder / "report.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in elsewhere.folder.iterdir()) == ["here"]
