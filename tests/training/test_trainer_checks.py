"""Every precision of Lightning's trainer either works or is refused before the first step."""

import warnings

import pytest
import torch

from sheafprop.training import InductiveDataModule
from tests.toy import toy_data
from tests.training.test_sheaf_completion import module, trainer


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
    with pytest.raises(ValueError, match=f"held in single precision at least .got {precision}"):
        fitted(tmp_path, precision, "rotate")
    assert not list(tmp_path.rglob("*.ckpt"))


def _batch():
    return toy_data().train.triples[:4], torch.arange(4)
