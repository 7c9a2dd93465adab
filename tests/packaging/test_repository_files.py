"""The files by which others join: citation, workflows, forms, CONTRIBUTING."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import sheafprop

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [
    path
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    if path.stem != "config"
]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check(schema, path):
    """Checks a file by a schema that comes with check-jsonschema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("citation-file-format", ROOT / "CITATION.cff"),
        *(("github-workflows", path) for path in WORKFLOWS),
        *(("github-issue-forms", path) for path in FORMS),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_files_follow_their_schema(schema, path, tmp_path):
    pytest.importorskip("check_jsonschema")
    code, told = check(schema, path)
    assert code == 0, told
    broken = tmp_path / path.name
    key = next(iter(read(path)))
    text = path.read_text(encoding="utf-8")
    broken.write_text(re.sub(rf"^{key}:", f"{key}x:", text, flags=re.MULTILINE))
    assert check(schema, broken)[0] == 1


def test_citations_are_of_this_version_and_of_one_paper():
    citation = read(ROOT / "CITATION.cff")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert citation["version"] == sheafprop.__version__
    assert f"version = {{{sheafprop.__version__}}}" in readme
    (paper,) = citation["references"]
    assert f"title   = {{{paper['title']}}}" in readme
    assert paper["url"].rsplit("/", 1)[1] in readme


def test_every_run_of_a_workflow_is_a_script_of_the_clone():
    assert {path.stem for path in WORKFLOWS} == {"docs", "publish", "tests"}
    for path in WORKFLOWS:
        steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
        for line in (step["run"] for step in steps if "run" in step):
            for script in re.findall(r"scripts/\S+", line):
                assert (ROOT / script).is_file(), line


def test_pythons_are_those_that_the_metadata_names():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    named = re.findall(r"Python :: (3\.\d+)", parser["metadata"]["classifiers"])
    (tests,) = (read(path) for path in WORKFLOWS if path.stem == "tests")
    # The metadata name those that the suite has been run on; the workflow also tries later ones.
    tried = tests["jobs"]["tests"]["strategy"]["matrix"]["python-version"]
    assert tried[: len(named)] == named
    assert parser["options"]["python_requires"] == f">={named[0]}"


def test_only_the_publishing_job_may_ask_for_a_token():
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}
        asking = [name for name, job in workflow["jobs"].items() if "permissions" in job]
        assert asking == (["publish"] if path.stem == "publish" else [])


def test_places_that_the_guide_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:sheafprop|configs|scripts|docs|examples|tests)[\w./]*)`", text)
    named = [place for place in named if "NAME" not in place and not place.startswith("sheafprop.")]
    assert len(named) > 25
    assert [place for place in named if not (ROOT / place).exists()] == []
