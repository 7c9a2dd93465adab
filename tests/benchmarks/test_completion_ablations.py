import json
from types import SimpleNamespace

import pytest
from benchmarks import completion_ablations as ablations
from benchmarks import completion_cell
from benchmarks.presets import MODELS, completion_config

from sheafprop.training import SheafCompletion
from tests.benchmarks.test_completion import small
from tests.toy import toy_data


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [*ablations.PROPAGATION, *ablations.TRAINING])
def test_every_variant_is_a_configuration_and_changes_something(name, model):
    config = completion_config("best", "fb237", "v1", model)["model"]
    change = (ablations.PROPAGATION | ablations.TRAINING)[name]
    changed = SheafCompletion(**ablations.merge(config, change)).hparams
    same = changed == SheafCompletion(**config).hparams
    assert same == (name == "as it is" or _already(name, config))


def _already(name, config):
    """Variants that some models' preset has anyway."""
    return (
        (name == "distance instead of its square" and not config["kge_args"]["squared"])
        or (name == "half the dimension" and config["hidden_channels"] == 32)
        or (name == "twice the dimension" and config["hidden_channels"] == 128)
    )


def run(monkeypatch, data, trained, folder):
    monkeypatch.setattr(
        completion_cell, "build_dataset", lambda *_, **__: SimpleNamespace(load=lambda: data)
    )
    return ablations.run_ablation(small(), trained, 0, folder=folder)


def test_no_test_triple_is_looked_at(monkeypatch, tmp_path):
    data = toy_data("fully-inductive", without=("test",))
    records = run(monkeypatch, data, "as it is", tmp_path)
    assert [r["ablation"] for r in records] == list(ablations.PROPAGATION)
    assert all(0 <= r["validation_hits@10"] <= 1 for r in records)
    (limit,) = (r for r in records if r["ablation"] == "limit (4096 steps)")
    assert limit["iterations"] == 4096
    json.dumps(records)


def test_a_variant_of_the_training_is_trained(monkeypatch, tmp_path):
    data = toy_data("fully-inductive")
    (one,) = run(monkeypatch, data, "entities of any length", tmp_path)
    assert one["ablation"] == "entities of any length"


def test_cells_of_different_variants_differ_in_their_hash():
    found = ablations.cells(["fb237"], ["v1"], "rotate", [0, 1])
    assert len(found) == 2 * (1 + len(ablations.TRAINING))
    assert len({cell.key["config_hash"] for cell in found}) == 1 + len(ablations.TRAINING)
    assert ablations.cells(["fb237", "fb237"], ["v1", "v1"], "rotate", [0, 1, 0]) == found
