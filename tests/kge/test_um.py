from typing import ClassVar

import pytest
import torch

from .cases import KGEModelCase


class TestUM(KGEModelCase):
    name = "um"
    closest_to_itself: ClassVar[bool] = True

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        interaction = modules.UMInteraction(p=p, power_norm=False)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        torch.testing.assert_close(model(head, relation, tail), interaction(x[head], (), x[tail]))

    def test_relations_do_not_matter(self):
        model = self.build()
        head, relation, tail = self.triples()
        assert torch.equal(model(head, relation, tail), model(tail, relation.flip(0), head))
        assert model.sheaf().translation is None
        assert model.sheaf().num_relations == 4
