"""What a run leaves beside its model, from a trainer alone."""

import json
import warnings

from sheafprop.report.run_report_callback import RunReport, _log_to_wandb
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


def test_other_weights_of_proximity_drop_what_was_tested(tmp_path):
    folder, report = tmp_path / "ring", RunReport()
    model = module(proximity={"share": "auto"})
    run = trainer(folder, 1, callbacks=[SaveModel(), report])
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
    path = folder / "metrics.json"
    record = json.loads(path.read_text())
    for share, kept in ((record["selection"]["proximity"]["chosen"]["share"], True), (9.0, False)):
        record["test"] = []
        record["selection"]["proximity"]["chosen"]["share"] = share
        path.write_text(json.dumps(record))
        report._trained = False  # as where a run is resumed and nothing is added
        report.on_fit_end(run, model)
        assert ("test" in json.loads(path.read_text())) is kept


def test_tried_settings_are_tables_of_wandb(tmp_path):
    tables = {}

    class Logger:
        def log_table(self, name, columns, data):
            tables[name] = columns, data

    row = {"hits@10": 0.5}
    curve = [{"weight": 0.1, "peers": 0.0} | row, {"share": 0.2, "peers": 0.0} | row]
    selection = {"curve": [{"iterations": 3} | row], "proximity": {"curve": curve}}
    _log_to_wandb(Logger(), {"selection": selection}, tmp_path)
    assert tables == {
        "validation/by_iteration": (["iterations", "hits@10"], [[3, 0.5]]),
        "validation/by_proximity": (
            ["weight", "peers", "hits@10", "share"],
            [[0.1, 0.0, 0.5, None], [None, 0.0, 0.5, 0.2]],
        ),
    }
    tables.clear()
    _log_to_wandb(Logger(), {"selection": {"curve": [], "proximity": None}}, tmp_path)
    assert tables == {}
