"""What travels with a checkpoint, and checkpoints of version 0.1.0, which lack some of it."""

import json
import warnings

import pytest
import torch

from sheafprop.cli.main import main
from sheafprop.data import assemble
from sheafprop.errors import DataError
from sheafprop.training import InductiveDataModule, SheafCompletion
from tests.cli.test_main import SMALL
from tests.toy import parts, toy_data, write_folder
from tests.training.test_sheaf_completion import fit, module, trainer


@pytest.mark.parametrize("kge", ["transe", "rotate", "se"])
def test_a_module_loads_without_a_trainer_and_becomes_a_model(tmp_path, kge):
    trained, _ = fit(tmp_path, 2, kge=kge)
    path = tmp_path / "checkpoints" / "last.ckpt"
    module = SheafCompletion.load_from_checkpoint(path)
    assert module.hparams == trained.hparams
    for a, b in zip(module.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(a, b)
    # The labels of the rows come from the checkpoint, not from the order of these lines.
    label_triples = parts("semi-inductive")
    backwards = {key: rows[::-1] for key, rows in label_triples.items()}
    model = module.to_sheaf_model(assemble("ring", "semi-inductive", **backwards))
    rows = label_triples["train"][::7]
    data = toy_data()
    ids = [
        [data.train.entities.index[h], data.train.relations.index[r], data.train.entities.index[t]]
        for h, r, t in rows
    ]
    x = trained.model.entity_vectors()
    expected = trained.model.score_triples(x, *torch.tensor(ids).T)
    assert torch.allclose(
        torch.tensor(model.score(rows)["score"].to_numpy()).float(), expected, atol=1e-5
    )
    assert "new" in model.extend([("new", "next", rows[0][0])]).labels()
    with pytest.raises(DataError, match="entities of the model must be"):
        module.to_sheaf_model(toy_data("fully-inductive"))


def test_a_trained_module_becomes_a_model_too(tmp_path):
    trained, _ = fit(tmp_path, 1)
    with torch.no_grad():
        vectors = trained.model.entity_vectors()
    assert torch.allclose(trained.to_sheaf_model().vectors().squeeze(1), vectors)


def test_a_checkpoint_in_double_precision_stays_in_it(tmp_path):
    fit(tmp_path, 1)
    path = tmp_path / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)
    stored["state_dict"] = {
        name: value.double() / 3 for name, value in stored["state_dict"].items()
    }
    torch.save(stored, path)
    module = SheafCompletion.load_from_checkpoint(path)
    for name, value in module.state_dict().items():
        assert torch.equal(value, stored["state_dict"][name])


@pytest.fixture
def old_run(tmp_path):
    """A run folder with the checkpoints of version 0.1.0."""
    data = write_folder(tmp_path / "ring")
    words = [f"--data.root={data}", "--data.mode=semi-inductive", f"--run.group={tmp_path}"]
    assert main(["fit", *SMALL, *words, "--run.name=old"]) == 0
    run = tmp_path / "old"
    for path in (run / "checkpoints").glob("*.ckpt"):
        stored = torch.load(path, weights_only=True)
        for name in ("relations", "data", "batches", "selection"):
            stored["sheafprop"].pop(name, None)
        torch.save(stored, path)
    record = json.loads((run / "metrics.json").read_text())
    del record["keys"]
    (run / "metrics.json").write_text(json.dumps(record))
    return run


def test_old_runs_are_tested_with_their_choice_and_go_on(old_run):
    chosen = json.loads((old_run / "metrics.json").read_text())["selection"]
    assert main(["test", "--run", str(old_run)]) == 0
    record = json.loads((old_run / "metrics.json").read_text())
    assert record["test"]
    assert record["selection"] == chosen
    assert main(["fit", "--resume", str(old_run), "--trainer.max_epochs=4"]) == 0
    assert main(["test", "--run", str(old_run)]) == 0


def test_lines_in_another_order_are_refused_where_relations_are_not_stored(old_run, capsys):
    data = old_run.parent / "ring"
    lines = (data / "train.txt").read_text().splitlines()[::-1]
    (data / "train.txt").write_text("\n".join(lines) + "\n")
    assert main(["test", "--run", str(old_run)]) == 1
    assert "the order of the lines" in capsys.readouterr().err


def test_results_of_old_runs_on_other_data_stand_beside(old_run):
    before = (old_run / "metrics.json").read_bytes()
    other = write_folder(old_run.parent / "other", without=("valid",))
    assert main(["test", "--run", str(old_run), f"--data.root={other}"]) == 0
    assert (old_run / "metrics.json").read_bytes() == before
    chosen = json.loads(before)["selection"]["chosen"]
    record = json.loads((old_run / "on-other" / "metrics.json").read_text())
    assert record["selection"]["chosen"] == chosen


def test_a_module_of_another_kind_of_checkpoint_is_refused(tmp_path):
    fit(tmp_path, 1)
    path = tmp_path / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)
    del stored["sheafprop"]
    torch.save(stored, path)
    with pytest.raises(ValueError, match="not one of SheafCompletion"):
        SheafCompletion.load_from_checkpoint(path)


def fitted(folder, precision, kge):
    model, run = module(kge=kge), trainer(folder, 2, precision=precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=InductiveDataModule.from_data(toy_data(), batch_size=16))
    return model, run


@pytest.mark.parametrize("kge", ["rotate", "se"])
def test_supported_precisions_agree_with_single_precision(tmp_path, kge):
    single, single_run = fitted(tmp_path / "single", "32-true", kge)
    for precision, dtype in [
        ("16-mixed", torch.float32),
        ("bf16-mixed", torch.float32),
        ("64-true", torch.float64),
    ]:
        model, run = fitted(tmp_path / precision, precision, kge)
        for a, b in zip(model.model.parameters(), single.model.parameters(), strict=True):
            assert a.dtype == dtype
            assert torch.allclose(a, b.to(dtype), atol=1e-5)
        assert model.model.entity_vectors().dtype.to_real() == dtype
        assert model.batch_loss(model.model, *_batch(), 0).dtype == dtype
        assert model.selection.to_dict()["chosen"] == single.selection.to_dict()["chosen"]
        for name in ("val/mrr", "val/transductive/mrr", "train/loss"):
            expected = float(single_run.callback_metrics[name])
            assert float(run.callback_metrics[name]) == pytest.approx(expected, abs=1e-5)


def test_double_precision_carries_more_digits_than_single_precision(tmp_path):
    model, _ = fitted(tmp_path, "64-true", "rotate")
    weight = model.model.node_emb.weight
    assert not torch.equal(weight, weight.float().double())


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_half_precision_is_refused_before_the_first_step(tmp_path, precision):
    with pytest.raises(ValueError, match=f"need at least single precision .got {precision}"):
        fitted(tmp_path, precision, "rotate")
    assert not list(tmp_path.rglob("*.ckpt"))


def _batch():
    return toy_data().train.triples[:4], torch.arange(4)
