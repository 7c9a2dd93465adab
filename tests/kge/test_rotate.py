import math

import pytest
import torch
from torch_geometric.nn.kge import RotatE as PyGRotatE

from sheafprop.kge import distance

from .cases import KGEModelCase


class TestRotatE(KGEModelCase):
    name = "rotate"

    def test_scores_equal_those_of_pyg(self):
        model = self.build_double()
        other = PyGRotatE(11, 4, 6, margin=0.0).double()
        x = model.entity_vectors()
        with torch.no_grad():
            other.node_emb.weight.copy_(x.real)
            other.node_emb_im.weight.copy_(x.imag)
            other.rel_emb.weight.copy_(model.rel_emb.weight)
        torch.testing.assert_close(model(*self.triples()), other(*self.triples()))

    def test_scores_equal_those_of_pykeen(self):
        # For p = 2 only: else PyKEEN takes the norm of real and imaginary parts, not of moduli.
        modules = pytest.importorskip("pykeen.nn.modules")
        model = self.build_double()
        interaction = modules.RotatEInteraction(p=2)
        x, phase = model.entity_vectors(), model.rel_emb.weight
        head, relation, tail = self.triples()
        turn = torch.polar(torch.ones_like(phase), phase)[relation]
        reference = interaction(x[head], turn, x[tail])
        torch.testing.assert_close(model(head, relation, tail), reference)

    def test_phases_cover_the_circle(self):
        phase = self.build(num_relations=500).rel_emb.weight.detach()
        assert float(phase.min()) >= -math.pi
        assert float(phase.max()) <= math.pi
        assert float(phase.std()) == pytest.approx(2 * math.pi / math.sqrt(12), rel=0.05)

    def test_conjugated_views_are_scored_by_their_values(self):
        model = self.build_double()
        x, triples = self.vectors(model), self.triples()
        view = x.conj()
        assert view.is_conj()
        torch.testing.assert_close(
            model.score_triples(view, *triples), model.score_triples(view.resolve_conj(), *triples)
        )

    @pytest.mark.parametrize("block", [1, 13, 40, 100])
    def test_small_blocks_of_moduli_give_the_same(self, block, monkeypatch):
        model = self.build_double(p=1.0)
        head, relation, _ = self.triples()
        whole = model.score_tails(model.entity_vectors(), head, relation)
        whole.sum().backward()
        gradient = model.node_emb.weight.grad.clone()
        monkeypatch.setattr(distance, "BLOCK_ELEMENTS", block)
        model.zero_grad()
        blocked = model.score_tails(model.entity_vectors(), head, relation)
        blocked.sum().backward()
        torch.testing.assert_close(blocked, whole)
        torch.testing.assert_close(model.node_emb.weight.grad, gradient)

    def test_the_scorer_exports_without_complex_weights(self):
        model, triples = self.build(), self.triples()
        program = torch.export.export(model, triples)
        assert not any(value.is_complex() for value in program.state_dict.values())
        torch.testing.assert_close(program.module()(*triples), model(*triples))
