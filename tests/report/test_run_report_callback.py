"""What a run leaves beside its model, from a trainer alone."""

import json
import warnings

from sheafprop.report.run_report_callback import RunReport
from sheafprop.training import BestCheckpoint, InductiveDataModule, Patience, SaveModel
from tests.toy import toy_data
from tests.training.test_sheaf_completion import module, trainer


def test_record_and_report_follow_the_training_and_the_test(tmp_path, capsys):
    folder = tmp_path / "runs" / "ring"
    callbacks = [SaveModel(), BestCheckpoint(), Patience(checks=2), RunReport("abc")]
    model, run = module(lr=1e-9), trainer(folder, 50, callbacks=callbacks)
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        record = json.loads((folder / "metrics.json").read_text())
        run.test(model, datamodule=data, verbose=False)
    out = capsys.readouterr().out
    after = out[out.index("model: ") :]
    assert after.index("Hits@10") < after.index("protocol:   full") < after.index("report: ")
    assert "the best epoch is selected by MRR of the inference graph" in out
    assert f"model: {folder / 'model'}" in out
    assert record["training"] == model.training_record
    assert record["training"]["stopped"] == "validation had not improved for 2 checks"
    assert record["selection"] == model.selection.to_dict()
    assert record["run"]["config_hash"] == "abc"
    tested = json.loads((folder / "metrics.json").read_text())
    assert tested["test"] == model.results
    assert tested["training"] == record["training"]
    for place in (folder, folder.parent):
        assert (place / "report.md").is_file()


def test_a_choice_that_changes_drops_what_was_tested(tmp_path):
    folder = tmp_path / "ring"
    folder.mkdir()
    before = {"format": 1, "run": {"name": "ring"}, "test": [], "selection": {"chosen": {}}}
    (folder / "metrics.json").write_text(json.dumps(before))
    model, run = module(), trainer(folder, 1, callbacks=[SaveModel(), RunReport()])
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
    assert "test" not in json.loads((folder / "metrics.json").read_text())
