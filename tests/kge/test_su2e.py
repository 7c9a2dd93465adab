import pytest
import torch

from sheafprop.kge import SU2E

from .cases import KGEModelCase


class TestSU2E(KGEModelCase):
    name = "su2e"
    width = 8

    def test_scores_equal_those_of_matrices_of_su2(self):
        """A quaternion as a complex matrix of determinant one, which acts on pairs."""
        model = self.build_double()
        a, b, c, d = model.sheaf().head.detach().unflatten(1, (-1, 4)).unbind(2)
        first, second = torch.complex(a, b), torch.complex(c, d)
        # (a + b i) + (c + d i) j, where j z = conj(z) j: linear in the second number's conjugate.
        matrices = torch.stack(
            [torch.stack([first, -second], -1), torch.stack([second.conj(), first.conj()], -1)], -2
        )
        determinant = torch.linalg.det(matrices)
        torch.testing.assert_close(determinant, torch.ones_like(determinant))
        w, i, j, k = model.entity_vectors().detach().unflatten(1, (-1, 4)).unbind(2)
        pairs = torch.stack([torch.complex(w, i), torch.complex(j, -k)], -1)
        head, relation, tail = self.triples()
        image = (matrices[relation] @ pairs[head].unsqueeze(-1)).squeeze(-1)
        expected = -torch.linalg.vector_norm((image - pairs[tail]).flatten(1), dim=1)
        torch.testing.assert_close(model(head, relation, tail).detach(), expected)

    def test_quaternions_have_length_one_whatever_their_rows(self):
        model = self.build_double()
        unit = model.sheaf().head.detach()
        with torch.no_grad():
            model.rel_emb.weight.mul_(3)
            model.rel_emb.weight[1, :4] = 0
        turned = model.sheaf().head
        unit[1, :4] = torch.tensor([1.0, 0, 0, 0])
        torch.testing.assert_close(turned.detach(), unit)
        turned[1].sum().backward()
        assert bool(torch.isfinite(model.rel_emb.weight.grad).all())
        length = unit.unflatten(1, (-1, 4)).norm(dim=2)
        torch.testing.assert_close(length, torch.ones_like(length))

    def test_quaternions_start_uniform_on_the_sphere(self):
        rows = self.build(num_relations=2000).rel_emb.weight.detach().view(-1, 4)
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
        assert float(rows.mean(0).abs().max()) < 0.05
        covariance = rows.T @ rows / len(rows)
        torch.testing.assert_close(covariance, torch.eye(4) / 4, atol=0.03, rtol=0)

    @pytest.mark.parametrize("width", [2, 6])
    def test_other_widths_are_refused(self, width):
        with pytest.raises(ValueError, match=f"multiple of four.*got {width}"):
            SU2E(3, 2, width)
