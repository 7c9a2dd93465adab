import pandas as pd
import pytest

from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS


@pytest.mark.parametrize("kind", ["tsv", "csv", "json", "parquet"])
def test_tables_come_in_every_format(tmp_path, capsys, model, facts, kind):
    expected = SheafModel.load(model).extend(FACTS)
    expected.save(tmp_path / "grown")
    place = tmp_path / f"scores.{kind}"
    done = output(capsys, "score", tmp_path / "grown", facts, "--out", place)
    assert done.out == ""
    read = {
        "tsv": lambda: table(place.read_text()),
        "csv": lambda: pd.read_csv(place),
        "json": lambda: pd.read_json(place),
        "parquet": lambda: pd.read_parquet(place),
    }[kind]()
    pd.testing.assert_frame_equal(read, expected.score(FACTS), check_dtype=False, atol=1e-12)
    if kind != "parquet":
        text = output(capsys, "score", tmp_path / "grown", facts, "--format", kind).out
        assert text == place.read_text()
    else:
        words = ["score", tmp_path / "grown", facts, "--format", kind]
        assert "--out" in failing(capsys, *words)
    assert "no format 'xls'" in failing(
        capsys, "score", tmp_path / "grown", facts, "--out", tmp_path / "x.xls"
    )
