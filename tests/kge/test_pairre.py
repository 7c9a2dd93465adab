import pytest
import torch

from .cases import KGEModelCase


class TestPairRE(KGEModelCase):
    name = "pairre"

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        interaction = modules.PairREInteraction(p=p, power_norm=False)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        pair = model.rel_map_head[relation], model.rel_map_tail[relation]
        reference = interaction(x[head], pair, x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_sheaf_is_a_diagonal_pair_without_translation(self):
        model = self.build()
        sheaf = model.sheaf()
        assert torch.equal(sheaf.head, model.rel_map_head)
        assert torch.equal(sheaf.tail, model.rel_map_tail)
        assert sheaf.translation is None

    def test_diagonals_start_around_one(self):
        model = self.build(num_relations=200, hidden_channels=50)
        for parameter in (model.rel_map_head, model.rel_map_tail):
            parameter = parameter.detach()
            assert float(parameter.mean()) == pytest.approx(1.0, abs=0.03)
            assert float(parameter.std()) == pytest.approx(0.5, rel=0.05)
