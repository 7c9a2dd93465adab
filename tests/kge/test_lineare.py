import pytest
import torch

from .cases import KGEModelCase


class TestLineaRE(KGEModelCase):
    name = "lineare"

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        interaction = modules.LineaREInteraction(p=p, power_norm=False)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        parts = (model.rel_map_head, model.rel_emb.weight, model.rel_map_tail)
        reference = interaction(x[head], tuple(part[relation] for part in parts), x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_unit_diagonals_make_it_transe(self):
        model = self.build_double()
        with torch.no_grad():
            model.rel_map_head.fill_(1)
            model.rel_map_tail.fill_(1)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        expected = -(x[head] + model.rel_emb.weight[relation] - x[tail]).norm(dim=1)
        torch.testing.assert_close(model(head, relation, tail), expected)
