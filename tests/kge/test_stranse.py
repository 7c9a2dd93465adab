import pytest
import torch

from sheafprop.kge import SE

from .cases import KGEModelCase


class TestSTransE(KGEModelCase):
    name = "stranse"

    @pytest.mark.parametrize("p", [1, 2])
    def test_scores_equal_those_written_out(self, p):
        model = self.build_double(p=p)
        x, head, relation, tail = model.entity_vectors(), *self.triples()
        mapped_head = torch.einsum("bkd,bd->bk", model.rel_map_head[relation], x[head])
        mapped_tail = torch.einsum("bkd,bd->bk", model.rel_map_tail[relation], x[tail])
        residual = mapped_head + model.rel_emb.weight[relation] - mapped_tail
        torch.testing.assert_close(model(head, relation, tail), -residual.norm(p=p, dim=1))

    def test_without_translation_it_is_se(self):
        model, other = self.build_double(), SE(11, 4, 6).double()
        with torch.no_grad():
            model.rel_emb.weight.zero_()
        state = {k: v for k, v in model.state_dict().items() if k != "rel_emb.weight"}
        other.load_state_dict(state)
        torch.testing.assert_close(model(*self.triples()), other(*self.triples()))
