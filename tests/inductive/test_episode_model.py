import math

import pytest
import torch

from sheafprop.inductive.episode_model import EpisodeModel, EpisodeSettings
from sheafprop.inductive.feature_map import Anchors
from sheafprop.kernels.rows import real_rows
from sheafprop.kge import build_model
from tests.inductive.episode_cases import MODELS, random_triples, small_model

SIZE = 9


def dense_diffusion(model, triples, x, steps):
    """Diffusion on the weighted sheaf by its matrices: x - h D^+ (L x - delta* W b)."""
    sheaf, h = model.maps.sheaf(), model.settings.step_size
    d = x.shape[-1]
    heads, tails = (sheaf.matrices(side, width=d).to(x.dtype) for side in ("head", "tail"))
    weight = model.log_weight.exp()
    shift = sheaf.translation_of(torch.arange(model.num_relations))
    for _ in range(steps):
        gradient, blocks = torch.zeros_like(x), x.new_zeros(len(x), d, d)
        for head, r, tail in triples.tolist():
            residual = x[tail] @ tails[r].T - x[head] @ heads[r].T
            if shift is not None:
                residual = residual - shift[r]
            gradient[tail] += weight[r] * residual @ tails[r].conj()
            gradient[head] -= weight[r] * residual @ heads[r].conj()
            if head == tail:
                both = tails[r] - heads[r]
                blocks[tail] += weight[r] * both.conj().T @ both
            else:
                blocks[tail] += weight[r] * tails[r].conj().T @ tails[r]
                blocks[head] += weight[r] * heads[r].conj().T @ heads[r]
        inverse = torch.linalg.pinv(blocks, hermitian=True, rtol=1e-9)
        x = x - h * torch.einsum("nij,nsj->nsi", inverse, gradient)
    return x


def dense_start(model, triples):
    rows = model.maps.as_vectors(model.prototypes)
    start, count = torch.zeros(SIZE, rows.shape[1], dtype=rows.dtype), torch.zeros(SIZE)
    for head, r, tail in triples.tolist():
        start[tail] += rows[r]
        start[head] += rows[r + model.num_relations]
        count[tail] += 1
        count[head] += 1
    return start / count.clamp_min(1).unsqueeze(1)


def unit(x):
    length = torch.linalg.vector_norm(real_rows(x).flatten(1), dim=1)
    return x / torch.where(length > 0, length, 1).view(-1, 1, 1)


def observed_by_definition(number, observed):
    if observed == "number":
        return torch.log1p(number)
    total, once, known = number.sum(), (number == 1).sum(), (number > 0).sum()
    if total == 0:
        return torch.zeros_like(number)
    new = (once + 0.5) / (total + 1)
    p = torch.where(number > 0, (1 - new) * number / total, new / (len(number) - known))
    return torch.log(len(number) * p)


def score_by_definition(model, triples, random, entity, relation, side):
    """All candidates of one query, term by term."""
    q = relation if side == "tail" else relation + model.num_relations
    x = torch.cat([dense_start(model, triples).unsqueeze(1), random], 1)
    n = torch.zeros(SIZE, 2 * model.num_relations, dtype=torch.float64)
    for head, r, tail in triples.tolist():
        n[tail, r] += 1
        n[head, r + model.num_relations] += 1
    total = model.count_weight[q] * observed_by_definition(n[:, q], model.settings.observed)
    if model.settings.counts:
        profile = torch.log1p(n) @ model.count_candidate
        total = total + model.degree_weight[q] * torch.log1p(n.sum(1))
        total = total + profile @ model.count_query[q]
    sheaf = model.score_maps.sheaf()
    d = x.shape[-1]
    heads, tails = (
        sheaf.matrices(name, width=d)[relation].to(x.dtype) for name in ("head", "tail")
    )
    shift = sheaf.translation_of(torch.tensor([relation]))
    for i, steps in enumerate(model.settings.times):
        y = dense_diffusion(model, triples, x, steps)
        p, z = unit(y[:, :1]), unit(y[:, 1:])
        for v in range(SIZE):
            h, t = (entity, v) if side == "tail" else (v, entity)
            for rows, strength in ((z, model.log_random), (p, model.log_prototype)):
                residual = rows[t] @ tails.T - rows[h] @ heads.T
                if shift is not None:
                    residual = residual - shift
                energy = real_rows(residual).square().sum()
                total[v] = total[v] - strength[i, q].exp() / 2 * energy
            total[v] = total[v] + model.direction[i, q] @ real_rows(p[v, 0])
    return total


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_the_score_is_that_of_the_definition(kind):
    triples = random_triples()
    observed = "number" if kind in ("transe", "su2e") else "frequency"
    counts, own = kind != "se", kind == "rotate"
    model = small_model(kind, times=(2, 3), own_maps=own, counts=counts, observed=observed)
    random = model.draw_sections([f"e{i}" for i in range(SIZE)], 0)
    graph = model.diffuse(triples, SIZE, random)
    entity, relation = torch.tensor([0, 5, 8]), torch.tensor([2, 0, 2])
    for side in ("tail", "head"):
        found = model.score(graph, entity, relation, side)
        for row in range(3):
            expected = score_by_definition(
                model, triples, random, int(entity[row]), int(relation[row]), side
            )
            torch.testing.assert_close(found[row], expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", ["rotate", "transe", "su2e", "um", "se"])
@pytest.mark.parametrize("side", ["tail", "head"])
def test_scores_are_differentiable_in_rows_of_any_length(kind, side):
    model = small_model(kind, times=(2, 3))
    random = model.draw_sections([f"e{i}" for i in range(SIZE)], 0)
    graph = model.diffuse(random_triples(), SIZE, random)
    rows = [1.5 * x.detach() for x in (*graph.prototype, *graph.random)]
    entity, relation = torch.tensor([0, 5, 0]), torch.tensor([2, 0, 2])

    def score(*rows):
        own = graph._replace(prototype=rows[:2], random=rows[2:])
        return model.score(own, entity, relation, side)

    rows = [x.requires_grad_() for x in rows]
    assert torch.autograd.gradcheck(score, rows, fast_mode=True)


@pytest.mark.parametrize("kind", ["rotate", "su2e", "pairre", "se"])
@torch.no_grad()
def test_scores_keep_single_precision_under_autocast(kind):
    model = small_model(kind, torch.float32)
    random = model.draw_sections([str(i) for i in range(SIZE)], 0)
    graph = model.diffuse(random_triples(), SIZE, random)
    query = graph, torch.arange(3), torch.tensor([0, 2, 1]), "tail"
    expected = model.score(*query)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.score(*query)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_takes_relations_of_the_model_and_leaves_it_as_it_is():
    kge = build_model("rotate", num_nodes=5, num_relations=3, hidden_channels=4)
    before = {name: value.clone() for name, value in kge.state_dict().items()}
    model = EpisodeModel(kge, torch.randn(6, 4, dtype=torch.complex64), EpisodeSettings())
    assert torch.equal(model.maps.rel_emb.weight, kge.rel_emb.weight)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    assert all(torch.equal(value, before[name]) for name, value in kge.state_dict().items())


def test_no_parameter_belongs_to_an_entity():
    model = small_model("rotate", own_maps=True)
    names = model.trained_parameters()
    assert "maps.rel_emb.weight" in names
    assert "own_maps.rel_emb.weight" in names
    assert not any("node_emb" in name for name in names)
    for parameter in model.trained_parameters().values():
        assert set(parameter.shape) & {3, 6}


def test_random_maps_need_no_trained_ones():
    one, other = (
        small_model("rotate", maps="random", hidden_channels=6).maps.rel_emb.weight
        for _ in range(2)
    )
    assert one.shape == (3, 6)
    assert torch.equal(one, other)


@torch.no_grad()
def test_entities_without_triples_have_finite_scores():
    model = small_model("rotate", counts=True)
    triples = random_triples()[:4]
    graph = model.diffuse(triples, SIZE + 3, model.draw_sections(list("abcdefghijkl"), 0))
    scores = model.score(graph, torch.tensor([11]), torch.tensor([0]), "tail")
    assert bool(torch.isfinite(scores).all())
    empty = model.diffuse(triples[:0], 4, model.draw_sections(list("abcd"), 0))
    assert bool(
        torch.isfinite(model.score(empty, torch.tensor([1]), torch.tensor([2]), "head")).all()
    )


@torch.no_grad()
def test_renumbering_entities_renumbers_scores():
    triples, model = random_triples(), small_model("pairre", counts=True)
    random = model.draw_sections([str(i) for i in range(SIZE)], 0)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))
    place = torch.empty_like(order)
    place[order] = torch.arange(SIZE)
    moved = torch.stack([place[triples[:, 0]], triples[:, 1], place[triples[:, 2]]], 1).flip(0)
    one = model.diffuse(triples, SIZE, random)
    other = model.diffuse(moved, SIZE, random[order])
    entity, relation = torch.arange(SIZE), torch.arange(SIZE) % 3
    found = model.score(one, entity, relation, "head")
    torch.testing.assert_close(model.score(other, place[entity], relation, "head"), found[:, order])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"times": ()}, "times"),
        ({"times": (3, 2)}, "ascend"),
        ({"times": (0, 2)}, "positive"),
        ({"maps": "other"}, "maps"),
        ({"hidden_share": 1.0}, "hidden_share"),
        ({"lr": 0.0}, "lr"),
        ({"walk_lr": 0.0}, "walk_lr"),
        ({"walk_lr": math.inf}, "walk_lr"),
        ({"walk_steps": -1}, "walk_steps"),
        ({"walk_steps": 2.5}, "walk_steps"),
        ({"step_size": math.inf}, "step_size"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"count_weight": math.nan}, "count_weight"),
        ({"count_weight": -math.inf}, "count_weight"),
        ({"observed": "seen"}, "observed"),
        ({"num_steps": 0}, "num_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"hidden_channels": 8}, "random"),
    ],
)
def test_refuses_settings_out_of_range(changes, text):
    with pytest.raises(ValueError, match=text):
        EpisodeSettings(**changes)


def test_settings_survive_plain_values():
    settings = EpisodeSettings(times=[2, 4], counts=True, walk_steps=7, walk_lr=0.3)
    assert EpisodeSettings(**settings.to_dict()) == settings


def test_frequencies_with_half_a_weight_are_the_default():
    assert (EpisodeSettings().observed, EpisodeSettings().count_weight) == ("frequency", 0.5)
    assert not EpisodeSettings().rank_isolated


@pytest.mark.parametrize("start", [1, -0.5])
def test_weights_of_counts_start_where_the_settings_say(start):
    kge = build_model("rotate", num_nodes=5, num_relations=3, hidden_channels=4)
    settings = EpisodeSettings(count_weight=start)
    model = EpisodeModel(kge, torch.zeros(6, 4, dtype=torch.complex64), settings)
    # Integers are what a YAML file may hold.
    torch.testing.assert_close(model.count_weight.detach(), torch.full((6,), float(start)))


@pytest.mark.parametrize(
    ("numbers", "num_nodes"),
    [
        ([], 4),  # nothing observed: all alike
        ([1], 4),
        ([1, 1, 1, 1, 1], 9),  # every answer is new: those observed are less likely
        ([5, 3, 2], 7),
        ([2, 1, 4], 3),  # no other entity
    ],
)
def test_frequencies_are_those_of_good_and_turing(numbers, num_nodes):
    number = torch.zeros(num_nodes, dtype=torch.float64)
    number[: len(numbers)] = torch.tensor(numbers)
    triples = [(num_nodes + i, 0, v) for v, n in enumerate(numbers) for i in range(n)]
    triples = torch.tensor(triples, dtype=torch.long).view(-1, 3)
    triples[:, 0] %= num_nodes
    model = small_model("um")
    graph = model.diffuse(triples, num_nodes, torch.zeros(num_nodes, 1, 4, dtype=torch.float64))
    with torch.no_grad():
        model.count_weight.fill_(1)
        found = model._observed(graph, torch.tensor([2, 0]))
    assert torch.equal(found[0], torch.zeros(num_nodes))  # no triple of relation 2
    torch.testing.assert_close(found[1], observed_by_definition(number, "frequency"))
    p = found[1].exp() / num_nodes
    if num_nodes > len(numbers):
        assert float(p.sum()) == pytest.approx(1)
    if numbers == [1] * 5:
        assert bool((p[:5] < p[5]).all())
    if numbers == [5, 3, 2]:
        assert p.argsort(descending=True)[:3].tolist() == [0, 1, 2]


def test_episodes_stored_before_frequencies_see_numbers():
    model = small_model("rotate", torch.float32, observed="number")
    stored = model.stored()
    for name in ("count_weight", "observed", "rank_isolated"):
        del stored["settings"][name]
    kge = build_model("rotate", num_nodes=SIZE, num_relations=3, hidden_channels=4)
    again = EpisodeModel.from_stored(kge, stored)
    assert (again.settings.observed, again.settings.count_weight) == ("number", 0.0)
    assert again.settings.rank_isolated
    assert torch.equal(again.count_weight, model.count_weight)
    assert EpisodeModel.from_stored(kge, small_model("rotate").stored()).settings.observed == (
        "frequency"
    )


def test_weights_of_the_walk_start_equal_and_are_no_part_of_the_score():
    model = small_model("rotate", walk_steps=2)
    assert torch.equal(model.log_walk, torch.zeros(6, 3))
    assert "log_walk" not in model.trained_parameters()
    triples = random_triples()
    sections = model.draw_sections([str(i) for i in range(SIZE)], 0)
    found = []
    for _ in range(2):
        graph = model.diffuse(triples, SIZE, sections)
        found.append(model.score(graph, torch.tensor([1]), torch.tensor([2]), "head"))
        with torch.no_grad():
            model.log_walk += torch.randn(6, 3)
    assert torch.equal(*found)


def test_episodes_stored_before_walks_had_weights_are_read_without():
    model = small_model("rotate", torch.float32)
    stored = model.stored()
    kge = build_model("rotate", num_nodes=SIZE, num_relations=3, hidden_channels=4)
    assert "log_walk" not in stored["state"]
    for name in ("walk_steps", "walk_lr"):
        del stored["settings"][name]
    assert EpisodeModel.from_stored(kge, stored).log_walk is None
    # Weights that the settings promise must be there.
    stored["settings"]["walk_steps"] = 3
    with pytest.raises(ValueError, match=r"(?s)do not fit: .*log_walk"):
        EpisodeModel.from_stored(kge, stored)


@pytest.mark.parametrize("name", ["transe", "rotate", "transr"])
def test_features_draw_the_prototype_section_alone_and_their_weight_is_learned(name):
    kge = build_model(name, num_nodes=SIZE, num_relations=3, hidden_channels=4)
    kge.reset_parameters(1)
    triples, width = random_triples(), kge.hidden_channels
    prototypes = kge.as_vectors(torch.randn(2 * kge.num_relations, kge.node_emb.weight.shape[1]))
    settings = EpisodeSettings(times=(1, 3), num_random=2)
    model = EpisodeModel(kge, prototypes.detach(), settings, gamma=0.7)
    target = kge.as_vectors(torch.randn(3, kge.node_emb.weight.shape[1])).detach()
    assert target.shape == (3, width)
    anchors = Anchors(torch.tensor([0, 4, SIZE]), target, torch.ones(3))
    random = model.draw_sections([str(i) for i in range(SIZE + 1)], 0)
    # The last entity has no fact: it comes to where its features draw it.
    plain = model.diffuse(triples, SIZE + 1, random)
    drawn = model.diffuse(triples, SIZE + 1, random, anchors)
    for i in range(2):
        assert torch.equal(plain.random[i], drawn.random[i])
        assert not torch.allclose(plain.prototype[i], drawn.prototype[i])
        unit = target[2] / torch.linalg.vector_norm(target[2])
        torch.testing.assert_close(drawn.prototype[i][SIZE, 0], unit)
    real_rows(drawn.prototype[1][:SIZE])[..., 0].sum().backward()
    assert float(model.log_gamma.grad.abs()) > 0
    again = EpisodeModel.from_stored(kge, model.stored())
    more = again.diffuse(triples, SIZE + 1, random, anchors)
    assert torch.equal(more.prototype[1], drawn.prototype[1])
    without = EpisodeModel(kge, prototypes.detach(), settings)
    assert "log_gamma" not in without.state_dict()
    same = without.diffuse(triples, SIZE + 1, random, anchors)
    assert torch.equal(same.prototype[1], plain.prototype[1])
