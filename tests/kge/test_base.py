import pytest
import torch

from sheafprop.kernels.rows import real_rows
from sheafprop.kge import KGEModel, RotatE, TransE, base, build_model
from sheafprop.kge.base import near_identity, near_one, unit_translations
from sheafprop.sheaf import DiagonalSheaf


class Turned(KGEModel):
    """Complex maps of any modulus, by what their sheaf says alone."""

    name = "turned"
    is_complex = True

    def __init__(self, num_nodes, num_relations, hidden_channels, **options):
        super().__init__(num_nodes, num_relations, hidden_channels, **options)
        self.rel_map = torch.nn.Parameter(torch.empty(num_relations, 2 * hidden_channels))
        self.reset_parameters()

    def _reset_relations(self, generator):
        near_one(self.rel_map, 0.5, generator)

    def sheaf(self):
        return DiagonalSheaf(self.as_vectors(self.rel_map), None, self.as_vectors(self.rel_map))


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("num_sections", [1, 2])
def test_the_sheaf_alone_gives_the_scores(p, num_sections):
    model = Turned(5, 3, 4, p=p).double()
    x = torch.randn(5, num_sections, 4, dtype=torch.complex128)
    head, relation, tail = torch.tensor([[0, 4, 2], [1, 1, 2], [3, 3, 1]])
    maps = model.sheaf().matrices("head")[relation]
    b = model.sheaf().translation_of(relation)
    residual = torch.einsum("bkd,bsd->bsk", maps, x[head]) + b.unsqueeze(1) - x[tail]
    expected = -residual.abs().pow(p).sum(2).pow(1 / p).sum(1)
    torch.testing.assert_close(model.score_triples(x, head, relation, tail), expected)
    rows = torch.arange(3)
    torch.testing.assert_close(model.score_tails(x, head, relation)[rows, tail], expected)
    torch.testing.assert_close(model.score_heads(x, relation, tail)[rows, head], expected)


@pytest.mark.parametrize("kind", ["transe", "rotate", "su2e", "um"])
@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize("num_sections", [None, 2])
def test_scores_are_distances_of_query_vectors(kind, side, num_sections):
    model = build_model(
        kind, num_nodes=6, num_relations=3, hidden_channels=4, squared=True
    ).double()
    dtype = model.entity_vectors().dtype
    shape = (6, 4) if num_sections is None else (6, num_sections, 4)
    x, relation = torch.randn(shape, dtype=dtype), torch.tensor([0, 2, 2])
    found = model.query_vectors(x[:3], relation, side)
    rows = real_rows(x if num_sections else x.unsqueeze(1))
    distance = (found.unsqueeze(1) - rows).square().sum((2, 3))
    torch.testing.assert_close(-distance, model.score_candidates(x[:3], relation, x, side))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model.query_vectors(x[:3], relation, side), found)


def test_maps_that_do_not_keep_distances_have_no_query_vectors():
    model = build_model("se", num_nodes=3, num_relations=2, hidden_channels=4)
    with pytest.raises(ValueError, match="the maps of SE do not keep distances"):
        model.query_vectors(torch.randn(1, 4), torch.tensor([0]), "tail")


@pytest.mark.parametrize("nodes", [1, 15, 16, 31, 32, 33, 50])
@pytest.mark.parametrize("kge", [TransE, RotatE])
def test_a_table_that_is_drawn_in_blocks_is_that_of_one_draw(kge, nodes, monkeypatch):
    whole = kge(nodes, 2, 3)
    whole.reset_parameters(seed=5)
    monkeypatch.setattr(base, "_DRAWN_ROWS", 16)
    blocks = kge(nodes, 2, 3)
    blocks.reset_parameters(seed=5)
    for a, b in zip(whole.parameters(), blocks.parameters(), strict=True):
        assert torch.equal(a, b)


def test_starts_of_relations():
    def draw(function, *more):
        out = torch.empty(200, 8, 8) if function is near_identity else torch.empty(200, 8)
        function(out, *more, torch.Generator().manual_seed(0))
        return out

    lengths = torch.linalg.vector_norm(draw(unit_translations), dim=1)
    torch.testing.assert_close(lengths, torch.ones(200))
    assert draw(near_one, 0.0).eq(1).all()
    assert draw(near_identity, 0.0).eq(torch.eye(8)).all()
    assert torch.equal(draw(near_one, 0.5), draw(near_one, 0.5))


def test_rows_of_length_one_are_known_by_constraint_or_by_themselves():
    assert TransE(4, 2, 3).has_unit_rows()
    assert not TransE(4, 2, 3, entity_constraint="ball").has_unit_rows()
    free = TransE(4, 2, 3, entity_constraint=None)
    with torch.no_grad():
        free.node_emb.weight.copy_(torch.eye(4)[:, :3] + torch.eye(4)[:, 1:])
    assert free.has_unit_rows() == bool((free.entity_vectors().norm(dim=1) == 1).all())
