import pytest
import torch

from .cases import KGEModelCase


class TestSE(KGEModelCase):
    name = "se"

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        interaction = modules.SEInteraction(p=p, power_norm=False)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        maps = model.rel_map_head[relation], model.rel_map_tail[relation]
        reference = interaction(x[head], maps, x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_maps_of_both_ends_differ(self):
        sheaf = self.build().sheaf()
        assert not torch.equal(sheaf.head, sheaf.tail)
        assert sheaf.translation is None
