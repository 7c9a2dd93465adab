"""Closed forms of new relations against numerical minimisation of the energy they minimise."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from sheafprop.errors import DataError
from sheafprop.kge import KGE_REGISTRY, KGEModel, TransE, build_model
from sheafprop.kge.closed_forms import Facts, closest_rotation, fit_line, fit_pair, widest_direction
from sheafprop.sheaf import edge_energy

D = 3
NAMES = ("transe", "rotate", "pairre", "lineare", "se", "stranse", "transr", "transh", "um", "su2e")


def width(name):
    return 4 if name == "su2e" else D


def trained(name):
    more = {"relation_channels": 2} if name == "transr" else {}
    model = build_model(name, num_nodes=5, num_relations=4, hidden_channels=width(name), **more)
    model.reset_parameters(1)
    return model.double()


def facts_of(model, number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if model.is_complex else torch.float64
    ends = torch.randn(2, number, model.hidden_channels, generator=generator, dtype=dtype)
    return *(ends + 0.5), torch.rand(number, generator=generator, dtype=torch.float64) + 0.1


def energy_of(name, head, tail, weight):
    """The energy of facts as the sheaf of the model has it, as a function of the relation."""
    more = {"relation_channels": 2} if name == "transr" else {}
    one = build_model(
        name, num_nodes=1, num_relations=1, hidden_channels=width(name), **more
    ).double()
    x, index = torch.cat([head, tail]), torch.arange(2 * len(head)).view(2, -1)
    kinds = torch.zeros(len(head), dtype=torch.int64)
    module = Energy(one, lambda: (weight * edge_energy(x, index, kinds, one.sheaf())).sum())

    def energy(rows):
        assert rows.keys() == one.state_dict().keys() - {"node_emb.weight"}
        own = {f"model.{key}": value.unsqueeze(0) for key, value in rows.items()}
        return torch.func.functional_call(module, own, ())

    return energy


class Energy(torch.nn.Module):
    """A function of a model as a module, so that parameters can be put in with their gradients."""

    def __init__(self, model, function):
        super().__init__()
        self.model, self.function = model, function

    def forward(self):
        return self.function()


def rotation(free, reflect):
    skew = torch.zeros(D, D, dtype=torch.float64)
    skew[tuple(torch.triu_indices(D, D, 1))] = free
    turn = torch.matrix_exp(skew - skew.T)
    return turn @ torch.diag(torch.tensor([-1.0 if reflect else 1.0, 1.0, 1.0]).double())


def candidates(model):
    """Pairs of the number of free parameters, and what they say that a relation is."""
    name, eye, ones = model.name, torch.eye(D).double(), torch.ones(D).double()
    if name == "transe":
        return [(D, lambda v: {"rel_emb.weight": v})]
    if name in ("rotate", "su2e"):
        return [(width(name), lambda v: {"rel_emb.weight": v})]
    if name == "um":
        return [(0, lambda v: {})]
    if name == "pairre":
        pairs = torch.stack([model.rel_map_head, model.rel_map_tail]).detach()
        length = pairs.norm(dim=0).mean(0)
        return [(D, lambda v: {"rel_map_head": length * v.cos(), "rel_map_tail": length * v.sin()})]
    if name == "lineare":
        return [(2 * D, lambda v: {"rel_map_head": v[:D], "rel_map_tail": ones,
                                   "rel_emb.weight": v[D:]})]  # fmt: skip
    if name == "transh":
        return [(2 * D, lambda v: {"rel_normal": v[:D], "rel_emb.weight": v[D:]})]
    if name == "transr":
        maps = model.rel_map.detach()
        norms = maps.flatten(1).norm(dim=1)
        maps = maps * (norms.mean() / norms).view(-1, 1, 1)
        return [(2, lambda v, own=own: {"rel_map": own, "rel_emb.weight": v}) for own in maps]
    shift = {"stranse": lambda v: {"rel_emb.weight": v[D:]}, "se": lambda v: {}}[name]
    size = {"stranse": 2 * D, "se": D}[name]
    return [
        (size, lambda v, r=r: {"rel_map_head": rotation(v[:D], r), "rel_map_tail": eye} | shift(v))
        for r in (False, True)
    ]


def least(model, energy):
    """The least energy that a numerical minimisation finds, from several starts."""
    rng, best = np.random.default_rng(0), np.inf
    for size, relation in candidates(model):
        if size == 0:
            return float(energy(relation(None)))

        def value(v, relation=relation):
            v = torch.tensor(v, requires_grad=True)
            found = energy(relation(v))
            (gradient,) = torch.autograd.grad(found, v)
            return found.item(), gradient.numpy()

        for _ in range(3):
            start = rng.normal(size=size)
            found = minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-10})
            best = min(best, found.fun)
    return best


def test_every_model_of_the_library_is_looked_at():
    assert set(NAMES) == {
        n for n, c in KGE_REGISTRY.items() if c.__module__.startswith("sheafprop")
    }


@pytest.mark.parametrize(("number", "weighted"), [(1, False), (2, True), (7, True)])
@pytest.mark.parametrize("name", NAMES)
def test_a_fitted_relation_has_the_least_energy(name, number, weighted):
    model = trained(name)
    head, tail, weight = facts_of(model, number)
    rows = model.fit_relation(head, tail, weight if weighted else None)
    energy = energy_of(name, head, tail, weight if weighted else torch.ones_like(weight))
    assert float(energy(rows)) == pytest.approx(least(model, energy), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_weights_count_as_repetitions_and_only_their_ratios_matter(name):
    model = trained(name)
    head, tail, _ = facts_of(model, 5, seed=2)
    weight = torch.tensor([2.0, 0.0, 1.0, 3.0, 1.0])
    repeated = torch.tensor([0, 0, 2, 3, 3, 3, 4])
    rows = model.fit_relation(head, tail, 7 * weight)
    for key, value in model.fit_relation(head[repeated], tail[repeated]).items():
        assert torch.allclose(rows[key], value, atol=1e-10)


@pytest.mark.parametrize("name", ["transe", "rotate", "su2e", "lineare", "se", "stranse"])
def test_maps_at_tails_are_the_identity_and_exact_facts_have_no_residual(name):
    model = trained(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key == "rel_map_tail":
                parameter.copy_(torch.eye(D) if parameter.dim() == 3 else torch.ones(4, D))
            if key == "rel_map_head" and parameter.dim() == 3:
                parameter.copy_(torch.linalg.qr(parameter)[0])
    sheaf, kind = model.sheaf(), torch.full((9,), 2)
    head, _, _ = facts_of(model, 9)
    tail = sheaf.restrict(head, kind, "head")
    shift = sheaf.translation_of(kind)
    tail = tail if shift is None else tail + shift
    rows = model.fit_relation(head, tail)
    for key, value in rows.items():
        own = model.state_dict()[key][2]
        if name == "rotate":  # phases up to full turns
            own, value = torch.exp(1j * own), torch.exp(1j * value)
        assert torch.allclose(value, own, atol=1e-9)


def test_pairs_have_the_mean_length_of_the_model_and_matrices_its_mean_norm():
    pairre, transr = trained("pairre"), trained("transr")
    rows = pairre.fit_relation(*facts_of(pairre, 4)[:2])
    lengths = torch.hypot(pairre.rel_map_head, pairre.rel_map_tail).mean(0)
    assert torch.allclose(torch.hypot(rows["rel_map_head"], rows["rel_map_tail"]), lengths)
    assert bool((rows["rel_map_head"] >= 0).all())
    rows = transr.fit_relation(*facts_of(transr, 4)[:2])
    assert float(rows["rel_map"].norm()) == pytest.approx(
        float(transr.rel_map.detach().flatten(1).norm(dim=1).mean())
    )


def test_what_is_open_takes_the_plainest_value():
    one = torch.ones(4).double() / 4
    head, tail = (
        torch.full((4, 1), 0.3).double(),
        torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(),
    )
    slope, shift = fit_line(Facts(head, tail, one))
    assert (float(slope), float(shift)) == pytest.approx((1.0, 2.2))
    zeros = torch.zeros(4, 1).double()
    assert torch.cat(fit_pair(Facts(zeros, zeros, one))).tolist() == pytest.approx([0.5**0.5] * 2)
    assert torch.allclose(closest_rotation(torch.zeros(3, 3).double()), torch.eye(3).double())
    # A turn of the first two directions leaves the third one as it is.
    turn = torch.zeros(3, 3).double()
    turn[:2, :2] = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    whole = turn.clone()
    whole[2, 2] = 1
    assert torch.allclose(closest_rotation(2 * turn), whole, atol=1e-9)
    assert widest_direction(torch.diag(torch.tensor([1.0, 5.0, 2.0]).double())).tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("head", "tail", "weight"),
    [
        ((2, D), (3, D), None),
        ((2, D + 1), (2, D + 1), None),
        ((0, D), (0, D), None),
        ((2, D), (2, D), [0.0, 0.0]),
        ((2, D), (2, D), [1.0, -0.5]),
        ((2, D), (2, D), [1.0, float("nan")]),
        ((2, D), (2, D), [1.0, float("inf")]),
        ((2, D), (2, D), [float("inf"), float("inf")]),
        ((2, D), (2, D), [1.0]),
    ],
)
def test_what_cannot_be_fitted_is_refused(head, tail, weight):
    given = None if weight is None else torch.tensor(weight)
    with pytest.raises(ValueError, match=r"'head' and 'tail' must|'weight' must"):
        trained("transe").fit_relation(torch.ones(head), torch.ones(tail), given)


def test_vectors_that_are_not_finite_are_refused_and_large_weights_are_not():
    model, bad = trained("transe"), torch.ones(2, D)
    bad[1, 0] = torch.nan
    for ends in ((bad, torch.ones(2, D)), (torch.ones(2, D), bad / 0)):
        with pytest.raises(ValueError, match=r"'head' and 'tail' must be finite"):
            model.fit_relation(*ends)
    head, tail, weight = facts_of(model, 3)
    (row,) = model.fit_relation(head, tail, weight).values()
    for scale in (1e308 / float(weight.max()), 1e-300):  # whose sum is not finite; close to zero
        (other,) = model.fit_relation(head, tail, scale * weight).values()
        torch.testing.assert_close(other, row)


def test_a_model_without_a_closed_form_refuses_by_its_name():
    class Own(TransE):
        _fit = KGEModel._fit

    model = Own(3, 2, D)
    with pytest.raises(
        DataError, match="Own has no closed form for a new relation: train it again"
    ):
        model.fit_relation(torch.ones(2, D), torch.ones(2, D))


def test_matrices_of_zeros_give_none():
    model = trained("transr")
    model.rel_map.data.zero_()
    with pytest.raises(DataError, match="all matrices of the model are zero"):
        model.fit_relation(*facts_of(model, 3)[:2])
