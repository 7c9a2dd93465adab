from typing import ClassVar

import pytest
import torch

from .cases import KGEModelCase


class TestTransR(KGEModelCase):
    name = "transr"
    more: ClassVar[dict] = {"relation_channels": 4}

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        # PyKEEN multiplies from the left (x @ M) and clamps mapped vectors, which we do not.
        interaction = modules.TransRInteraction(p=p, power_norm=False, max_projection_norm=1e9)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        maps = model.rel_map[relation].transpose(1, 2)
        reference = interaction(x[head], (model.rel_emb.weight[relation], maps), x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_both_ends_share_the_map(self):
        sheaf = self.build().sheaf()
        assert sheaf.head is sheaf.tail
        assert sheaf.head.shape == (4, 4, 6)

    def test_maps_start_near_the_identity(self):
        model = self.build(hidden_channels=64, relation_channels=None)
        assert model.relation_channels == 64
        noise = model.rel_map.detach() - torch.eye(64)
        assert float(noise.std()) == pytest.approx(0.1 / 8, rel=0.05)

    def test_bad_relation_channels_are_refused(self):
        with pytest.raises(ValueError, match=r"'relation_channels'.*got 0"):
            self.build(relation_channels=0)
