import pytest
import torch
from torch_geometric.nn.kge import ComplEx, RotatE, TransE

from sheafprop.io.importers import import_pyg

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
    again = import_pyg(model.state_dict(), p=2.0, **LABELS)
    if p == 2:
        assert torch.equal(again.model.node_emb.weight, stored.model.node_emb.weight)


def test_rotate_scores_as_in_pyg_less_the_margin():
    model = RotatE(5, 2, 6, margin=3.0)
    for source in (model, model.state_dict()):
        stored = import_pyg(source, **LABELS)
        assert torch.allclose(scores(stored), model(*EVERY).detach() - 3.0, atol=1e-5)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="only TransE and RotatE"):
        import_pyg(ComplEx(5, 2, 6), **LABELS)
    from torch_geometric.nn.kge import DistMult

    with pytest.raises(ValueError, match="got DistMult"):
        import_pyg(DistMult(5, 2, 6), **LABELS)
