"""What is watched, the best checkpoint, patience, and the model folder, without any report."""

import math
import os
import warnings
from itertools import pairwise

import pandas as pd
import pytest
import torch

from sheafprop import SheafModel
from sheafprop.data import FeatureTable
from sheafprop.data.inductive_data import add_features
from sheafprop.errors import DataError
from sheafprop.files import StorageError
from sheafprop.inductive import (
    FeatureMap,
    PropagationSearch,
    ProximitySearch,
    ProximitySettings,
)
from sheafprop.pretrained.model_folder import load_model_folder
from sheafprop.training import (
    BestCheckpoint,
    InductiveDataModule,
    Patience,
    SaveModel,
    SheafCompletion,
)
from sheafprop.training.callbacks import choose_monitor
from sheafprop.training.checkpoint_state import AtomicCheckpointIO, describe_other_options
from tests.inductive.test_inductive_propagation import with_features
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module, trainer


@pytest.mark.parametrize(
    ("without", "monitor", "mode"),
    [
        ((), "val/mrr", "max"),
        (("train_valid",), "val/mrr", "max"),
        (("valid",), "val/transductive/mrr", "max"),
        (("valid", "train_valid"), "train/loss", "min"),
    ],
)
def test_the_nearest_validation_there_is_decides(without, monitor, mode):
    found = choose_monitor(toy_data(without=without))
    assert found[:2] == (monitor, mode)
    assert ("none" in found[2] or "no validation" in found[2]) == ("valid" in without)


def test_a_checkpoint_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"epoch": 1, "weight": torch.ones(3)}, path)

    def refuse(source, target):
        raise PermissionError(13, "refused", target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StorageError):
            AtomicCheckpointIO().save_checkpoint({"epoch": 2}, path)
    stored = AtomicCheckpointIO().load_checkpoint(path)
    assert stored["epoch"] == 1
    assert torch.equal(stored["weight"], torch.ones(3))
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_the_best_checkpoint_is_the_best_and_never_one_that_is_not_a_number(tmp_path, monkeypatch):
    values = [0.2, math.nan, 0.7, 0.4, math.nan]

    def score(self, batch, batch_idx):
        self.log("val/mrr", torch.tensor(values[self.current_epoch]), batch_size=1)

    monkeypatch.setattr(SheafCompletion, "validation_step", score)
    _, run = fit(tmp_path, 5, toy_data(without=("train_valid",)))
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert stored["epoch"] == 2
    assert float(run.checkpoint_callback.best_model_score) == pytest.approx(0.7)


def test_a_moved_state_names_the_files_of_its_folder(tmp_path):
    _, run = fit(tmp_path / "old", 2)
    state = run.checkpoint_callback.state_dict()
    moved = BestCheckpoint(dirpath=tmp_path / "new" / "checkpoints")
    moved.load_state_dict(state)
    assert moved.best_model_path == str(tmp_path / "new" / "checkpoints" / "best.ckpt")
    assert moved.last_model_path == str(tmp_path / "new" / "checkpoints" / "last.ckpt")
    assert list(moved.best_k_models) == [moved.best_model_path]
    assert moved.best_model_score == run.checkpoint_callback.best_model_score


def test_patience_stops_a_run_that_does_not_improve(tmp_path):
    _, run = fit(tmp_path, 50, callbacks=[Patience(checks=2)], lr=1e-9)
    assert run.current_epoch < 10


def test_patience_lets_a_falling_loss_go_on(tmp_path):
    data = toy_data(without=("valid", "train_valid"))
    _, run = fit(tmp_path, 8, data, callbacks=[Patience(checks=2)])
    assert run.early_stopping_callback.monitor == "train/loss"
    assert run.current_epoch == 8


def test_the_checks_that_are_set_now_hold_after_loading():
    old, new = Patience(checks=2), Patience(checks=7)
    old.wait_count = 1
    new.load_state_dict(old.state_dict())
    assert (new.wait_count, new.patience) == (1, 7)


def test_the_best_weights_and_the_choice_are_saved_and_taken_by_test(tmp_path, monkeypatch):
    model, run = fit(tmp_path, 4, callbacks=[SaveModel()])
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    folder = SheafModel.load(tmp_path)
    for name, value in folder.kge.state_dict().items():
        assert torch.equal(value, stored["state_dict"][f"kge.{name}"])
    assert folder.settings == model.selection.settings.to_dict()
    assert stored["sheafprop"]["selection"] == model.selection.to_dict()
    assert model.training_record["best_epoch"] == stored["epoch"] + 1
    assert model.training_record["stopped"] == "all epochs were run"
    loaded = SheafCompletion.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt")
    assert loaded.selection == model.selection
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    monkeypatch.setattr(SheafCompletion, "choose_propagation", lambda self: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.test(loaded, datamodule=data, ckpt_path="best", verbose=False)
    assert loaded.results


def test_without_a_checkpoint_the_last_weights_are_saved(tmp_path):
    model, run = module(), trainer(tmp_path, 2, callbacks=[SaveModel()], enable_checkpointing=False)
    with pytest.warns(UserWarning, match="no checkpoint was kept"):
        run.fit(model, datamodule=InductiveDataModule.from_data(toy_data(), batch_size=16))
    folder = SheafModel.load(tmp_path)
    assert torch.equal(folder.kge.node_emb.weight, model.model.node_emb.weight)
    assert model.training_record["monitor"] == "none"


@pytest.mark.parametrize("options", [dict(max_epochs=0), dict(fast_dev_run=True)])
def test_without_training_there_is_no_model(tmp_path, options):
    run = trainer(tmp_path, 1, callbacks=[SaveModel(), BestCheckpoint()], **options)
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    if "max_epochs" in options:
        with pytest.raises(DataError, match="nothing was trained"):
            run.fit(module(), datamodule=data)
    else:
        run.fit(module(), datamodule=data)
    assert not (tmp_path / "model").exists()


EPISODES = {"num_steps": 3, "num_random": 2, "batch_size": 8, "counts": True, "walk_steps": 2}


def run_test(run, model, monkeypatch=None):
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.test(model, datamodule=data, ckpt_path="best", verbose=False)
    return {(row["method"], row["protocol"]): row["metrics"] for row in model.results}


def test_episodes_are_trained_saved_and_taken_by_test(tmp_path, monkeypatch):
    near = {"weight": 0.4}
    model, run = fit(tmp_path, 3, callbacks=[SaveModel()], episodes=EPISODES, proximity=near)
    assert model.episode_record["num_steps"] == 3
    assert not (tmp_path / "checkpoints" / "episodes").exists()
    folder = SheafModel.load(tmp_path)
    stored = folder.stored()
    assert stored.episodes.settings == model.episode_settings
    assert stored.proximity.weight == 0.4
    for name, value in model.episodes.state_dict().items():
        assert torch.equal(value, stored.episodes.state_dict()[name])
    assert folder.metrics["episodes"]["num_steps"] == 3
    assert math.isfinite(folder.metrics["episodes"]["walk_loss"])
    assert bool(stored.episodes.log_walk.ne(0).any())
    loaded = SheafCompletion.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt")
    with monkeypatch.context() as patch:
        patch.setattr(SheafCompletion, "train_episodes", lambda self: 1 / 0)
        found = run_test(run, loaded)
    assert loaded.results[0]["method"] == "TransE + episodes + proximity"
    again = SheafCompletion.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt")
    taken = again.to_sheaf_model(toy_data()).stored()
    assert torch.equal(taken.episodes.log_weight, stored.episodes.log_weight)
    # The module that was trained loads them, too.
    with monkeypatch.context() as patch:
        patch.setattr(SheafCompletion, "train_episodes", lambda self: 1 / 0)
        assert run_test(run, model) == found
    # Without a stored state they are trained again, to the same end.
    fresh = SheafCompletion.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt")
    with monkeypatch.context() as patch:
        patch.setattr(SheafCompletion, "restore_episodes", lambda self: False)
        assert run_test(run, fresh) == found


def test_without_episodes_and_proximity_nothing_else_changes(tmp_path):
    plain, _ = fit(tmp_path / "plain", 3, callbacks=[SaveModel()])
    both, _ = fit(
        tmp_path / "both", 3, callbacks=[SaveModel()], episodes=EPISODES, proximity={"share": 0.5}
    )
    assert plain.selection.settings == both.selection.settings
    for name, value in plain.kge.state_dict().items():
        assert torch.equal(value, both.kge.state_dict()[name])
    assert SheafModel.load(tmp_path / "plain").stored().episodes is None


AUTO = {"weight": "auto", "share": "auto", "peers": "auto"}


@pytest.mark.parametrize("episodes", [None, EPISODES])
def test_selected_weights_of_proximity_are_saved_and_taken_by_test(tmp_path, monkeypatch, episodes):
    model, run = fit(
        tmp_path, 3, callbacks=[SaveModel()], episodes=episodes, proximity=AUTO, protocols=("full",)
    )
    selected = model.selection.proximity
    stored = SheafModel.load(tmp_path).stored()
    assert stored.proximity.to_dict() == selected["chosen"]
    assert stored.metrics["selection"]["proximity"] == selected
    path = tmp_path / "checkpoints" / "best.ckpt"
    loaded = SheafCompletion.load_from_checkpoint(path)
    assert loaded.to_sheaf_model(toy_data()).stored().proximity == stored.proximity
    with monkeypatch.context() as patch:
        patch.setattr(ProximitySearch, "select", lambda *_, **__: 1 / 0)
        run_test(run, loaded)
    assert loaded.selection.proximity == selected
    other = SheafCompletion.load_from_checkpoint(path, proximity={"share": 0.9})
    assert other.proximity == ProximitySettings(share=0.9)
    # The same figures as with these numbers.
    fixed = SheafCompletion.load_from_checkpoint(path, proximity=selected["chosen"])
    assert fixed.hparams["proximity"] == selected["chosen"]
    run_test(run, fixed)
    assert fixed.results == loaded.results
    assert fixed.selection.proximity is None


def test_a_validation_keeps_the_selected_weights_of_proximity(tmp_path):
    model, run = fit(tmp_path, 3, callbacks=[SaveModel()], proximity=AUTO)
    stored = SheafModel.load(tmp_path).stored().proximity
    assert stored != ProximitySettings()
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    run.validate(model, datamodule=data, verbose=False)
    assert model.proximity == stored
    assert model.to_sheaf_model().stored().proximity == stored


def test_weights_of_proximity_are_selected_with_the_seed_and_the_features_of_the_run(
    tmp_path, monkeypatch
):
    given, original = [], ProximitySearch.select

    def watch(*arguments, **named):
        given.append(named)
        return original(*arguments, **named)

    monkeypatch.setattr(ProximitySearch, "select", watch)
    data = with_features("semi-inductive")
    model, _ = fit(tmp_path, 1, data, callbacks=[SaveModel()], proximity=AUTO, seed=7)
    (named,) = given
    assert named["seed"] == 7
    assert named["feature_map"] is model.fit_features()[0] is not None


def test_weights_of_proximity_are_selected_where_the_run_has_none(tmp_path, monkeypatch):
    """For other settings, or for episodes that are trained since; the propagation stays."""
    first, run = fit(tmp_path, 3, callbacks=[SaveModel()])
    path = tmp_path / "checkpoints" / "best.ckpt"
    monkeypatch.setattr(PropagationSearch, "select", lambda *_, **__: 1 / 0)
    near = SheafCompletion.load_from_checkpoint(path, proximity=AUTO)
    run_test(run, near)
    assert near.selection.settings == first.selection.settings
    assert near.selection.proximity["episodes"] is False
    assert near.seconds["select"] >= first.selection.seconds
    both = SheafCompletion.load_from_checkpoint(path, proximity=AUTO, episodes=EPISODES)
    run_test(run, both)
    assert both.selection.proximity["episodes"] is True
    assert both.results[0]["method"] == "TransE + episodes + proximity"
    assert both.proximity.to_dict() == both.selection.proximity["chosen"]


def test_a_large_graph_is_ranked_without_proximity(tmp_path, monkeypatch):
    monkeypatch.setattr("sheafprop.inductive.proximity_scorer._MOST_PRODUCTS", 1.0)
    model, run = fit(tmp_path, 2, callbacks=[SaveModel()], proximity=AUTO)
    assert model.proximity is None
    assert SheafModel.load(tmp_path).stored().proximity is None
    run_test(run, model)
    assert not any("proximity" in row["method"] for row in model.results)


def test_other_settings_of_episodes_train_them_anew(tmp_path):
    _, run = fit(tmp_path, 3, callbacks=[SaveModel()], episodes=EPISODES)
    other = {**EPISODES, "num_steps": 2}
    model = SheafCompletion.load_from_checkpoint(
        tmp_path / "checkpoints" / "best.ckpt", episodes=other
    )
    run_test(run, model)
    assert model.episode_record["num_steps"] == 2


def test_episodes_stored_before_a_setting_existed_are_not_trained_anew(tmp_path, monkeypatch):
    before = EPISODES | {"walk_steps": 0}
    fit(tmp_path, 1, callbacks=[SaveModel()], episodes=before)
    path = tmp_path / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)
    for name in ("walk_steps", "walk_lr"):
        del stored["sheafprop"]["episodes"]["settings"][name]
    torch.save(stored, path)
    for steps, kept in ((0, True), (2, False)):
        model = SheafCompletion.load_from_checkpoint(path, episodes=before | {"walk_steps": steps})
        assert model.restore_episodes() == kept


def test_a_run_from_before_isolated_entities_were_left_out_is_not_trained_anew(tmp_path):
    before = EPISODES | {"observed": "frequency", "rank_isolated": True}
    fit(tmp_path, 1, callbacks=[SaveModel()], episodes=before)
    path = tmp_path / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)
    del stored["sheafprop"]["episodes"]["settings"]["rank_isolated"]
    del stored["hyper_parameters"]["episodes"]["rank_isolated"]
    torch.save(stored, path)
    for settings in (EPISODES, before):
        model = SheafCompletion.load_from_checkpoint(path, episodes=settings)
        assert model.restore_episodes()
        assert model.episodes.settings.rank_isolated
        assert model.episodes.settings.observed == "frequency"


def test_a_run_from_before_frequencies_keeps_numbers_and_says_so(tmp_path):
    before = EPISODES | {"observed": "number", "count_weight": 0.0, "rank_isolated": True}
    fit(tmp_path, 1, callbacks=[SaveModel()], episodes=before)
    path = tmp_path / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)
    for name in ("observed", "count_weight", "rank_isolated"):
        del stored["sheafprop"]["episodes"]["settings"][name]
        del stored["hyper_parameters"]["episodes"][name]
    torch.save(stored, path)
    for settings in (EPISODES, before):
        model = SheafCompletion.load_from_checkpoint(path, episodes=settings)
        assert model.restore_episodes()
        assert model.episodes.settings.observed == "number"
        notes = describe_other_options(stored, model.hparams)
        assert not any("'frequency'" in note for note in notes)


def test_a_run_from_before_a_part_of_proximity_has_no_other_options(tmp_path):
    model, _ = fit(tmp_path, 1, callbacks=[SaveModel()], proximity=AUTO)
    path = tmp_path / "checkpoints" / "best.ckpt"
    stored = torch.load(path, weights_only=True)
    del stored["hyper_parameters"]["proximity"]["frequency"]
    assert describe_other_options(stored, model.hparams) == ()
    other = model.hparams["proximity"] | {"frequency": 0.2}
    (note,) = describe_other_options(stored, model.hparams | {"proximity": other})
    assert note == "ranked with --model.proximity.frequency 0.2, where the run has 0.0"


def test_episodes_see_the_training_triples_alone(tmp_path, monkeypatch):
    """Neither the inference graph nor held-out triples reach the second stage."""
    from sheafprop.training import sheaf_completion

    given = []
    original = sheaf_completion.train_episodes

    def spy(kge, triples, *args, **kwargs):
        given.append((kge.num_nodes, triples))
        return original(kge, triples, *args, **kwargs)

    monkeypatch.setattr(sheaf_completion, "train_episodes", spy)
    fit(tmp_path, 2, callbacks=[SaveModel()], episodes=EPISODES)
    ((num_nodes, triples),) = given
    data = toy_data()
    assert num_nodes == data.train.num_nodes
    assert torch.equal(triples, data.train.triples)
    held = {tuple(row) for row in data.train_valid.tolist()}
    assert not held & {tuple(row) for row in triples.tolist()}


def test_a_run_with_features_and_episodes_scores_entities_by_both(tmp_path, monkeypatch):
    fits = []
    original = FeatureMap.fit_left_out.__func__
    monkeypatch.setattr(
        FeatureMap,
        "fit_left_out",
        classmethod(lambda *a, **k: fits.append(a[2].clone()) or original(*a, **k)),
    )
    data = toy_data()
    labels = data.inference.entities.labels
    frame = pd.DataFrame({"place": [int(label[1:]) for label in labels], "kind": ["x", "y"] *
                          (len(labels) // 2)}, index=labels)  # fmt: skip
    data = add_features(data, FeatureTable.of(frame))
    model, run = fit(tmp_path, 2, data, callbacks=[SaveModel()], episodes=EPISODES)
    assert model.episodes.log_gamma is not None
    # Once for all that is done with the same weights: stage two, choice, folder and test.
    count = len(fits)
    assert not any(torch.equal(one, other) for one, other in pairwise(fits))
    rows = run.test(model, datamodule=InductiveDataModule.from_data(data), verbose=False)
    assert rows
    methods = [row["method"] for row in model.results]
    assert methods[0].endswith("+ episodes")
    assert any(method.endswith("without features") for method in methods)
    assert model.to_sheaf_model().feature_map is model.fit_features()[0]
    assert len(fits) == count
    with torch.no_grad():
        model.model.node_emb.weight[0] *= -1
    assert model.fit_features()[0].gamma > 0
    assert len(fits) == count + 1
    stored = load_model_folder(tmp_path / "model")
    assert stored.features.labels == data.train.entities.labels
    trained = SheafModel(stored)
    near = frame.loc[["a3"]].rename({"a3": "new"})
    far = near.assign(place=-50, kind="y")
    scores = [
        trained.extend((), features=given).predict_tails("new", "next", 30)["score"].tolist()
        for given in (near, far)
    ]
    assert scores[0] != scores[1]


def test_a_second_training_in_a_folder_does_not_replace_the_model(tmp_path):
    fit(tmp_path, 1, callbacks=[SaveModel()])
    kept = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match=r"holds the model of an earlier training.*overwrite=True"):
        fit(tmp_path, 2, callbacks=[SaveModel()])
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == kept
    fit(tmp_path, 2, callbacks=[SaveModel(overwrite=True)], lr=0.3)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != kept
