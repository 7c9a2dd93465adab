"""What the README prints is what the code does and what the stored results say."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from sheafprop.config_files import load_config
from sheafprop.report import (
    ablation_table,
    completion_cost_table,
    completion_table,
    result_table,
    service_table,
)

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = re.findall(r"<!-- results (\S+) ?(\S*) -->\n(.*?)<!-- end -->", TEXT, flags=re.DOTALL)
#: What a marker's second word prints of its file; without one, the file holds records of runs.
TABLES = {
    "": result_table,
    "ablations": ablation_table,
    "completion-cost": completion_cost_table,
    "completion-full": partial(completion_table, protocol="full"),
    "completion-merged": partial(completion_table, protocol="merged"),
    "completion-sampled50": partial(completion_table, protocol="sampled50"),
    "service": service_table,
}


def test_the_demo_runs_as_printed(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(compile(code, "README.md", "exec"), {})
    expected = re.search(r"print\(.*\)  # (.*)", code)
    assert expected is not None
    assert capsys.readouterr().out.strip() == expected.group(1)


@pytest.mark.parametrize(("file", "table", "printed"), RESULTS)
def test_tables_are_those_of_the_stored_results(file, table, printed):
    records = json.loads((ROOT / file).read_text(encoding="utf-8"))
    assert printed.strip() == TABLES[table](records).strip()


def test_there_are_results():
    assert len(RESULTS) >= 2


def test_every_named_configuration_exists():
    for path in re.findall(r"--config (\S+)", TEXT) + re.findall(r"configs/\S+\.yaml", TEXT):
        assert load_config(path)
    for path in re.findall(r"`?(?:bash )?(scripts/\w+\.sh)", TEXT):
        assert (ROOT / path).is_file()
