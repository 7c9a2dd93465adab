import warnings

import pytest
import torch
from lightning.pytorch import Trainer

from sheafprop.errors import DataError, DivergenceError
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_search import PropagationSearch
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import KGE_REGISTRY, LOSS_REGISTRY
from sheafprop.training import BestCheckpoint, InductiveDataModule, Patience, SheafCompletion
from tests.toy import toy_data

SEARCH = PropagationSearch(
    start=("random",), iterations=(1, 4, 8), settings=PropagationSettings(num_random=2)
)


def module(**changes):
    arguments = dict(kge="transe", hidden_channels=8, lr=0.05, propagation=SEARCH, seed=3)
    return SheafCompletion(**(arguments | changes))


def trainer(folder, epochs, **changes):
    arguments = dict(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[BestCheckpoint()],
    )
    return Trainer(**(arguments | changes))


def fit(folder, epochs, data=None, resume=None, *, callbacks=None, **changes):
    model = module(**changes)
    run = trainer(folder, epochs, callbacks=[BestCheckpoint(), *(callbacks or [])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(
            model,
            datamodule=InductiveDataModule.from_data(data or toy_data(), batch_size=16),
            ckpt_path=resume,
        )
    return model, run


@pytest.mark.parametrize(
    "changes",
    [
        dict(kge="transe"),
        dict(kge="rotate", lr_schedule="cosine", lr_epochs=4),
        dict(kge="rotate", loss="nssa", num_negatives=4),
        dict(kge="transr", loss="margin_ranking", num_negatives=2, optimizer="adagrad"),
        dict(kge="se"),
        dict(kge="rotate", sparse=True, num_candidates=3, optimizer="rowwise_adagrad"),
        dict(kge="transe", sparse=True, num_candidates=3, lr_schedule="cosine", lr_epochs=4),
    ],
    ids=lambda c: "-".join(str(v) for v in c.values()),
)
def test_two_plus_two_epochs_equal_four(tmp_path, changes):
    whole, _ = fit(tmp_path / "whole", 4, **changes)
    fit(tmp_path / "half", 2, **changes)
    last = tmp_path / "half" / "checkpoints" / "last.ckpt"
    resumed, run = fit(tmp_path / "rest", 4, resume=last, **changes)
    assert run.current_epoch == 4
    for (name, a), b in zip(
        whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("mode", ["semi-inductive", "fully-inductive"])
def test_one_seed_gives_one_result_and_another_seed_another(tmp_path, mode):
    def run(folder, seed):
        data = InductiveDataModule.from_data(toy_data(mode), batch_size=16)
        model = module(seed=seed)
        worker = trainer(tmp_path / folder, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worker.fit(model, datamodule=data)
            worker.test(model, datamodule=data, verbose=False)
        return model.results, model.model.state_dict()

    (a, weights_a), (b, weights_b), (c, weights_c) = run("a", 1), run("b", 1), run("c", 2)
    assert a == b
    assert all(torch.equal(weights_a[k], weights_b[k]) for k in weights_a)
    assert a != c
    assert not torch.equal(weights_a["rel_emb.weight"], weights_c["rel_emb.weight"])


def test_training_learns_the_ring_and_propagation_carries_it(tmp_path):
    data = InductiveDataModule.from_data(toy_data("fully-inductive"), batch_size=16)
    model = module(
        kge="rotate",
        kge_args={"squared": True},
        loss_args={"scale": 3.0, "label_smoothing": 0.1},
        hidden_channels=16,
    )
    run = trainer(tmp_path, 60, check_val_every_n_epoch=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        run.test(model, datamodule=data, verbose=False)
    mrr = {(r["method"], r["protocol"]): r["metrics"] for r in model.results}
    full = {method: m["mrr"] for (method, protocol), m in mrr.items() if protocol == "full"}
    assert full["RotatE + sheaf propagation"] > 0.6
    assert (
        full["RotatE + sheaf propagation"] > full["RotatE, random vectors (no propagation)"] + 0.2
    )
    assert full["RotatE + sheaf propagation"] > full["edge-type heuristic"] + 0.2


@pytest.mark.parametrize(
    ("without", "monitor"),
    [
        ((), "val/mrr"),
        (("valid",), "val/transductive/mrr"),
        (("valid", "train_valid"), "train/loss"),
        (("train_valid",), "val/mrr"),
    ],
)
def test_trains_with_whatever_validation_there_is(tmp_path, without, monitor):
    data = toy_data(without=without)
    model, run = fit(tmp_path, 3, data, callbacks=[Patience(checks=2)])
    assert run.checkpoint_callback.monitor == monitor
    assert run.early_stopping_callback.monitor == monitor
    assert (tmp_path / "checkpoints" / "best.ckpt").is_file()
    assert torch.isfinite(run.checkpoint_callback.best_model_score)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.test(
            model, datamodule=InductiveDataModule.from_data(data), verbose=False, ckpt_path="best"
        )
    assert model.selection.on == ("training graph" if "valid" in without else "validation")
    assert model.results[0]["metrics"]["count"] == 2 * len(data.test)


def test_without_test_triples_the_test_says_so(tmp_path):
    data = toy_data(without=("test",))
    model, run = fit(tmp_path, 1, data)
    with pytest.raises(DataError, match="no test triples"):
        run.test(model, datamodule=InductiveDataModule.from_data(data), verbose=False)


def test_a_loss_that_is_not_finite_stops_with_step_and_cause(tmp_path):
    with pytest.raises(DivergenceError, match=r"step \d+ \(epoch \d+\).*learning rate"):
        fit(tmp_path, 50, lr=1e30, optimizer="sgd", kge_args={"entity_constraint": None})
    for file in (tmp_path / "checkpoints").glob("*.ckpt"):
        stored = torch.load(file, weights_only=True)
        assert all(torch.isfinite(v).all() for v in stored["state_dict"].values())


def test_checkpoints_are_plain_and_real(tmp_path):
    fit(tmp_path, 1, kge="rotate")
    stored = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert not any(v.is_complex() for v in stored["state_dict"].values())
    again = SheafCompletion(**stored["hyper_parameters"])
    assert again.hparams == stored["hyper_parameters"]


def test_a_checkpoint_of_another_graph_is_refused(tmp_path):
    fit(tmp_path, 1)
    with pytest.raises(ValueError, match="must be the 24 entities of the training graph"):
        fit(
            tmp_path / "other",
            2,
            toy_data("fully-inductive"),
            resume=tmp_path / "checkpoints" / "best.ckpt",
        )


def test_entities_stay_on_the_sphere_and_relations_are_free(tmp_path):
    model, _ = fit(tmp_path, 3, kge="transe", lr=0.5)
    length = torch.linalg.vector_norm(model.model.entity_vectors(), dim=1)
    assert torch.allclose(length, torch.ones_like(length), atol=1e-5)
    relations = torch.linalg.vector_norm(model.model.rel_emb.weight, dim=1)
    assert not torch.allclose(relations, torch.ones_like(relations), atol=1e-2)


def test_merged_is_marked_when_validation_chose(tmp_path):
    data = InductiveDataModule.from_data(toy_data(), batch_size=16)
    model = module(protocols=("full", "merged"))
    run = trainer(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        run.test(model, datamodule=data, verbose=False)
    merged = [r for r in model.results if r["protocol"] == "merged"]
    assert merged[0]["mark"] == "selected on half of the test"
    assert merged[0]["metrics"]["count"] == 2 * (len(data.data.valid) + len(data.data.test))
    assert "mark" not in merged[-1]


@pytest.mark.parametrize(
    ("near", "marked"),
    [
        ({"weight": "auto"}, True),
        ({"weight": 0.4}, False),
        ({"weight": 0.4, "share": "auto"}, False),
        ({"weight": 0.4, "peers": "auto"}, True),
    ],
)
def test_merged_is_marked_when_validation_chose_the_weight_of_proximity(tmp_path, near, marked):
    data = InductiveDataModule.from_data(toy_data("fully-inductive"), batch_size=16)
    model = module(
        protocols=("merged",),
        episodes={"num_steps": 2, "num_random": 2},
        proximity=near,
    )
    run = trainer(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        run.test(model, datamodule=data, verbose=False)
    marks = {row["method"]: row.get("mark") for row in model.results}
    chosen = "selected on half of the test"
    assert marks["TransE + episodes + proximity"] == (chosen if marked else None)
    assert marks["TransE + sheaf propagation + proximity"] == chosen
    assert marks["TransE + episodes"] is marks["proximity alone"] is None


def test_every_model_and_loss_trains(tmp_path):
    for name in KGE_REGISTRY:
        for loss in LOSS_REGISTRY:
            model, _ = fit(tmp_path / f"{name}-{loss}", 1, kge=name, loss=loss, num_negatives=2)
            assert torch.isfinite(model.model.node_emb.weight).all()


def test_training_seconds_add_up_over_resumed_runs(tmp_path):
    whole, _ = fit(tmp_path / "whole", 2)
    path = tmp_path / "whole" / "checkpoints" / "last.ckpt"
    stored = torch.load(path, weights_only=True)
    assert 0 < stored["sheafprop"]["seconds"] <= whole.seconds["train"] < 1000
    stored["sheafprop"]["seconds"] = 1000.0
    torch.save(stored, path)
    resumed, _ = fit(tmp_path / "rest", 4, resume=path)
    assert 1000 < resumed.seconds["train"] < 2000


def test_the_seed_draws_the_parameters():
    first, again, other = (module(seed=seed).build(5, 2) for seed in (1, 1, 2))
    assert torch.equal(first.node_emb.weight, again.node_emb.weight)
    assert not torch.equal(first.node_emb.weight, other.node_emb.weight)


def test_held_out_triples_change_no_vector(tmp_path):
    """Neither training nor propagation sees what is to be predicted, only the filter does."""
    found = []
    for without in ((), ("test",), ("valid", "test", "train_valid")):
        data = toy_data("fully-inductive", without=without)
        model, _ = fit(tmp_path / str(len(without)), 2, data)
        vectors = InductivePropagation(model.model, data, SEARCH.settings).vectors(4)
        found.append((model.model.entity_vectors().detach(), vectors))
    for trained, propagated in found[1:]:
        assert torch.equal(trained, found[0][0])
        assert torch.equal(propagated, found[0][1])


@pytest.mark.parametrize("kge", ["rotate", "transe"])
def test_weights_that_mean_nothing_are_never_kept(tmp_path, kge):
    with pytest.raises(DivergenceError, match="learning rate"):
        fit(tmp_path, 3, kge=kge, lr=1e30)
    assert not list(tmp_path.rglob("best.ckpt"))


def test_the_random_baseline_follows_the_seed(tmp_path):
    found = []
    for seed in (1, 2):
        data = InductiveDataModule.from_data(toy_data("fully-inductive"), batch_size=16)
        model = module(seed=seed, kge="rotate", lr=1e-9)
        run = trainer(tmp_path / str(seed), 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.fit(model, datamodule=data)
            run.test(model, datamodule=data, verbose=False)
        found += [r["metrics"] for r in model.results if "random vectors" in r["method"]][:1]
    assert found[0]["mean_rank"] != found[1]["mean_rank"]


def test_protocols_are_checked(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        module(protocols=())
    data = InductiveDataModule.from_data(toy_data(without=("valid",)), batch_size=16)
    model = module(protocols=("merged",))
    run = trainer(tmp_path, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, datamodule=data)
        with pytest.raises(DataError, match="merged"):
            run.test(model, datamodule=data, verbose=False)


def test_each_step_ranks_the_triples_of_its_batch(tmp_path):
    data = toy_data()
    model, _ = fit(tmp_path, 1, data)
    model.log_dict = lambda *_, **__: None  # outside of a loop
    with torch.no_grad():
        model.validation_step(("inductive", data.valid[:1]), 0)
        assert model.selection.count == 1
        model.choose_propagation()
        model.test_step(data.test[:2], 0)
    assert {row["metrics"]["count"] for row in model.results if row["protocol"] == "full"} == {4}


def test_a_copy_is_fresh_and_has_the_same_arguments():
    function = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    first = module(optimizer=function, kge="se", reference=True, kge_args={"squared": True})
    again = first.copy(reference=False)
    assert again.optimizer is function
    assert again.hparams == first.hparams | {"reference": False}
    assert again.kge is None
