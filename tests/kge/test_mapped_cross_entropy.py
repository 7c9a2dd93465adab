"""The cross entropy of distances under the maps of relations."""

import pytest
import torch

from sheafprop.kernels import threads
from sheafprop.kge import CrossEntropyLoss, build_model
from sheafprop.kge import distance_cross_entropy as blocks_of
from sheafprop.kge.base import KGEModel
from sheafprop.kge.distance import row_distance
from sheafprop.kge.distance_cross_entropy import distance_cross_entropy
from tests.kge.test_distance_cross_entropy import LEFT_OUT, without

GROUP = torch.tensor([0, 0, 0, 1, 2, 2, 2])
TARGET = torch.tensor([0, 8, 3, 3, 5, 1, 8])


def mapped_cross_entropy(queries, candidates, maps, group, target, **options):
    return distance_cross_entropy(queries, candidates, target, maps=maps, group=group, **options)


@pytest.fixture(params=["whole", "blocks"])
def blocks(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(blocks_of, "_CPU_BLOCK_ELEMENTS", 18)
        monkeypatch.setattr(blocks_of, "_IMAGE_NUMBERS", 12)
        monkeypatch.setattr(blocks_of, "_LEAST_ROWS", 2)


def rows(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def small(k, d):
    return rows(7, k), rows(9, d, seed=1), rows(3, k, d, seed=2)


def by_autograd(q, c, maps, group, target, squared, smoothing, scale):
    """The definition, with all images and differences at once."""
    images = torch.einsum("bkd,cd->bck", maps[group], c)
    distance = row_distance(q.unsqueeze(1) - images, p=2.0, squared=squared, block=1)
    return torch.nn.functional.cross_entropy(-scale * distance, target, label_smoothing=smoothing)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("k", "d"), [(4, 4), (6, 3), (2, 5), (1, 1)])
@pytest.mark.parametrize(("smoothing", "scale"), [(0.0, 1.0), (0.2, 7.5)])
@pytest.mark.parametrize("squared", [False, True])
def test_equals_autograd(squared, smoothing, scale, k, d):
    inputs = small(k, d)
    loss = mapped_cross_entropy(
        *inputs, GROUP, TARGET, squared=squared, label_smoothing=smoothing, scale=scale
    )
    expected = by_autograd(*inputs, GROUP, TARGET, squared, smoothing, scale)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, inputs),
        torch.autograd.grad(3 * expected, inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("squared", [False, True])
def test_candidates_left_out_are_none(squared, smoothing):
    q, c, maps = small(4, 3)
    loss = mapped_cross_entropy(
        q, c, maps, GROUP, TARGET,
        squared=squared, label_smoothing=smoothing, scale=2.0, left_out=LEFT_OUT,
    )  # fmt: skip
    images = torch.einsum("bkd,cd->bck", maps[GROUP], c)
    distance = row_distance(q.unsqueeze(1) - images, p=2.0, squared=squared, block=1)
    expected = without(-2 * distance, TARGET, LEFT_OUT, smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (q, c, maps)),
        torch.autograd.grad(expected, (q, c, maps)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("k", "d"), [(3, 2), (2, 3)])
@pytest.mark.parametrize("squared", [False, True])
def test_gradcheck(squared, k, d):
    assert torch.autograd.gradcheck(
        lambda *inputs: mapped_cross_entropy(
            *inputs, GROUP, TARGET, squared=squared, label_smoothing=0.1, scale=2.0
        ),
        small(k, d),
    )


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("k", "d"), [(8, 8), (8, 4), (4, 8)])
@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("squared", [False, True])
def test_close_pairs_keep_their_digits(squared, gap, k, d):
    _, c, maps = (x.detach().float() for x in small(k, d))
    step = torch.nn.functional.normalize(rows(7, k, seed=3), dim=1).detach().float()
    q = torch.einsum("bkd,bd->bk", maps[GROUP], c[TARGET]) + gap * step
    inputs = [x.requires_grad_() for x in (q, c, maps)]
    mapped_cross_entropy(*inputs, GROUP, TARGET, squared=squared, scale=5.0).backward()
    exact = [x.detach().double().requires_grad_() for x in inputs]
    by_autograd(*exact, GROUP, TARGET, squared, 0.0, 5.0).backward()
    # Rounding of the vectors themselves is all that may be lost: about 1e-7 / gap.
    tolerance = max(1e-4, 1e-6 / gap)
    for x, y in zip(inputs, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("squared", [False, True])
def test_gradient_at_distance_zero_is_zero(squared):
    c, maps = torch.eye(3).requires_grad_(), torch.eye(3).unsqueeze(0).requires_grad_()
    q = torch.eye(3)[:1].requires_grad_()
    group, target = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    mapped_cross_entropy(q, c[:1], maps, group, target, squared=squared).backward()
    for x in (q, c, maps):
        assert torch.equal(x.grad, torch.zeros_like(x))


def test_maps_that_lose_directions():
    # M^T M is singular and of very unequal eigenvalues: the close pairs lie along the lost ones.
    maps = torch.diag(torch.tensor([1e3, 1.0, 0.0])).unsqueeze(0)
    c = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.001, -9.0], [1.0, 5.0, 0.0]])
    q = (maps[0] @ c[0]).unsqueeze(0)
    zero = torch.zeros(1, dtype=torch.long)
    inputs = [x.requires_grad_() for x in (q, c, maps)]
    loss = mapped_cross_entropy(*inputs, zero, zero + 1)
    loss.backward()
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = by_autograd(*exact, zero, zero + 1, False, 0.0, 1.0)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("sides", ["both", "tail"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("se", {}),
        ("stranse", {}),
        ("transr", {"relation_channels": 7}),
        ("transr", {}),
        ("rotate", {}),
        ("transe", {}),
    ],
)
@pytest.mark.parametrize("leaving_out", [False, True])
def test_models_train_as_by_their_scores(name, more, sides, squared, leaving_out):
    model = build_model(
        name, num_nodes=9, num_relations=4, hidden_channels=5, squared=squared, **more
    ).double()
    generator = torch.Generator().manual_seed(0)
    triples = torch.stack(
        [torch.randint(size, (20,), generator=generator) for size in (9, 4, 9)], dim=1
    )
    loss = CrossEntropyLoss(0.2, 3.0)
    left_out = None
    if leaving_out:
        row, others = torch.arange(20), triples[:, :1] + torch.tensor([2, 5])
        left_out = {
            "tail": (row, (triples[:, 2] + 1) % 9),
            "head": (row.repeat_interleave(2), others.flatten() % 9),
        }
    found = []
    for function in (type(model).loss_over_entities, KGEModel.loss_over_entities):
        model.zero_grad()
        value = function(model, loss, model.entity_vectors(), triples, sides, left_out)
        value.backward()
        found.append([value.detach(), *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


def test_no_array_of_queries_x_candidates_is_kept():
    q, c, maps = rows(300, 2), rows(9000, 2, seed=1), rows(2, 2, 2, seed=2)
    group = torch.arange(300) // 150
    saved = []

    def keep(tensor):
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mapped_cross_entropy(q, c, maps, group, torch.zeros(300, dtype=torch.long))
    assert sum(saved) <= q.numel() + c.numel() + maps.numel()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(bad):
    q, c, maps = (x.detach() for x in small(3, 3))
    q[2, 1] = bad
    assert not torch.isfinite(mapped_cross_entropy(q, c, maps, GROUP, TARGET))


@pytest.mark.parametrize("squared", [False, True])
def test_threads_change_rounding_only(squared, monkeypatch):
    monkeypatch.setattr(blocks_of, "_CPU_BLOCK_ELEMENTS", 18)
    monkeypatch.setattr(blocks_of, "_LEAST_ROWS", 2)
    # Little work is not shared otherwise.
    monkeypatch.setattr(threads, "_SERIAL_WORK", 1)
    before, found = torch.get_num_threads(), []
    queries, candidates, maps = rows(7, 4), rows(9, 3, seed=1), rows(3, 4, 3, seed=2)
    # A close pair in each of two shares of one relation.
    with torch.no_grad():
        for i in (4, 6):
            queries[i] = maps[2] @ candidates[i] + 1e-9
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            loss = mapped_cross_entropy(
                queries, candidates, maps, GROUP, TARGET, squared=squared, left_out=None
            )
            found.append([loss, *torch.autograd.grad(loss, (queries, candidates, maps))])
    finally:
        torch.set_num_threads(before)
    for one, two, three in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
        assert torch.equal(two, three)
