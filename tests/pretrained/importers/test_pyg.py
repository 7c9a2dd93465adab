import pytest
import torch
from torch_geometric.nn.kge import ComplEx, DistMult, RotatE, TransE

from sheafprop.cli.import_model import _state
from sheafprop.pretrained.importers.pyg import import_pyg

LABELS = {"entities": list("abcde"), "relations": ["r", "s"]}
FACTS = [("a", "r", "b"), ("b", "s", "c")]
EVERY = torch.cartesian_prod(torch.arange(5), torch.arange(2), torch.arange(5)).unbind(1)


def scores(stored):
    return stored.model.score_triples(stored.model.entity_vectors(), *EVERY).detach()


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_transe_scores_as_in_pyg(p):
    model = TransE(5, 2, 6, p_norm=p)
    with torch.no_grad():
        model.node_emb.weight.mul_(3)
    if p == 1:
        with pytest.warns(UserWarning, match="1-norm"):
            stored = import_pyg(model, facts=FACTS, keep_unused=True, **LABELS)
    else:
        stored = import_pyg(model, facts=FACTS, keep_unused=True, **LABELS)
    assert torch.allclose(scores(stored), model(*EVERY).detach(), atol=1e-5)
    assert stored.facts.tolist() == [[0, 0, 1], [1, 1, 2]]
    again = import_pyg(model.state_dict(), kge="transe", p=2.0, **LABELS)
    if p == 2:
        assert torch.equal(again.model.node_emb.weight, stored.model.node_emb.weight)


def test_rotate_scores_as_in_pyg_less_the_margin():
    model = RotatE(5, 2, 6, margin=3.0)
    for source, kge in ((model, None), (model.state_dict(), "rotate")):
        stored = import_pyg(source, kge=kge, **LABELS)
        assert torch.allclose(scores(stored), model(*EVERY).detach() - 3.0, atol=1e-5)


@pytest.mark.parametrize("kind", [DistMult, ComplEx])
def test_other_models_are_refused_by_name(tmp_path, kind):
    model = kind(5, 2, 6)
    torch.save(model, tmp_path / "model.pt")
    for source in (model, _state(str(tmp_path / "model.pt"))):
        for kge in (None, "transe"):
            with pytest.raises(ValueError, match=f"only TransE and RotatE .*got {kind.__name__}"):
                import_pyg(source, kge=kge, **LABELS)
    with pytest.raises(ValueError, match="does not say what model it is of"):
        import_pyg(model.state_dict(), **LABELS)
    with pytest.raises(ValueError, match=r"only TransE and RotatE .*got complex"):
        import_pyg(model.state_dict(), kge="complex", **LABELS)


def test_a_saved_model_brings_its_class_and_its_norm(tmp_path):
    model = TransE(5, 2, 6, p_norm=2.0)
    torch.save(model, tmp_path / "model.pt")
    stored = import_pyg(_state(str(tmp_path / "model.pt")), **LABELS)
    assert torch.allclose(scores(stored), model(*EVERY).detach(), atol=1e-5)
    with pytest.raises(ValueError, match="got TransE, not a rotate"):
        import_pyg(model, kge="rotate", **LABELS)
    with pytest.raises(ValueError, match=r"RotatE .* has the parameters"):
        import_pyg(model.state_dict(), kge="rotate", **LABELS)
    with pytest.warns(UserWarning, match="does not hold the norm"):
        assert import_pyg(model.state_dict(), kge="transe", **LABELS).model.p == 1


@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."]
)
def test_prefixes_of_wrappers_are_left_out(tmp_path, prefix):
    model = RotatE(5, 2, 6)
    state = {prefix + name: value for name, value in model.state_dict().items()}
    torch.save({"epoch": 7, "model_state_dict": state}, tmp_path / "last.ckpt")
    want = import_pyg(model, **LABELS)
    for source in (state, _state(str(tmp_path / "last.ckpt"))):
        got = import_pyg(source, kge="rotate", **LABELS)
        assert torch.equal(got.model.node_emb.weight, want.model.node_emb.weight)


def test_a_model_saved_inside_its_wrapper_is_found(tmp_path):
    model = RotatE(5, 2, 6)
    wrapper = torch.nn.Module()
    wrapper.add_module("module", model)
    torch.save(wrapper, tmp_path / "ddp.pt")
    got = import_pyg(_state(str(tmp_path / "ddp.pt")), **LABELS)
    assert torch.equal(got.model.rel_emb.weight, model.rel_emb.weight)
