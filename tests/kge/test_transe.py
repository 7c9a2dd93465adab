import pytest
import torch
from torch_geometric.nn.kge import TransE as PyGTransE

from .cases import KGEModelCase


class TestTransE(KGEModelCase):
    name = "transe"

    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_scores_equal_those_of_pyg(self, p):
        model = self.build_double(p=p)
        other = PyGTransE(11, 4, 6, p_norm=p).double()
        with torch.no_grad():
            # PyG scales entities to unit p-norm when it scores.
            model.node_emb.weight.div_(model.node_emb.weight.norm(p=p, dim=1, keepdim=True))
            other.node_emb.weight.copy_(model.node_emb.weight)
            other.rel_emb.weight.copy_(model.rel_emb.weight)
        torch.testing.assert_close(model(*self.triples()), other(*self.triples()))

    @pytest.mark.parametrize("squared", [False, True])
    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p, squared):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p, squared=squared and p == 2)
        interaction = modules.TransEInteraction(p=p, power_norm=squared)
        x, r = model.entity_vectors(), model.rel_emb.weight
        head, relation, tail = self.triples()
        reference = interaction(x[head], r[relation], x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_relations_start_with_length_one_and_stay_longer(self):
        model = self.build_double()
        length = model.rel_emb.weight.norm(dim=1)
        torch.testing.assert_close(length, torch.ones_like(length))
        with torch.no_grad():
            model.rel_emb.weight.mul_(3)
        model.constrain_entities_()
        torch.testing.assert_close(model.rel_emb.weight.norm(dim=1), 3 * length)
