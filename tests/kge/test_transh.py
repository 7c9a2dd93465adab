import pytest
import torch

from .cases import KGEModelCase


class TestTransH(KGEModelCase):
    name = "transh"

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_of_pykeen(self, p):
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double(p=p)
        interaction = modules.TransHInteraction(p=p, power_norm=False)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        pair = model.rel_normal[relation], model.rel_emb.weight[relation]
        reference = interaction(x[head], pair, x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_normals_act_by_their_direction(self):
        model = self.build_double()
        before = model(*self.triples())
        with torch.no_grad():
            model.rel_normal.mul_(torch.tensor([[0.1], [3.0], [7.0], [0.5]]))
        torch.testing.assert_close(model(*self.triples()), before)

    def test_maps_are_shared_projections_of_corank_one(self):
        sheaf = self.build_double().sheaf()
        assert sheaf.head is sheaf.tail
        torch.testing.assert_close(sheaf.head @ sheaf.head, sheaf.head)
        assert torch.equal(torch.linalg.matrix_rank(sheaf.head), torch.full((4,), 5))

    def test_scores_form_no_matrix_per_relation(self):
        model = self.build(num_nodes=3, num_relations=2, hidden_channels=20_000)
        index, relation = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0])
        # A projection of this width would take 1.6 GB.
        assert torch.isfinite(model.score_tails(model.entity_vectors(), index, relation)).all()
