"""What a scorer of queries may know: the observed graph of its split, and nothing else."""

from dataclasses import replace

import pytest
import torch
from benchmarks import query_cell
from benchmarks.presets import query_config
from benchmarks.query_cell import TYPES
from benchmarks.query_sampling import sample_queries
from benchmarks.query_split import inductive_query_split
from benchmarks.query_task import QueryTask

from sheafprop.data import Vocabulary
from sheafprop.inductive.inductive_propagation import InductivePropagation
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kge import build_model
from sheafprop.nn import RelationPrototypes
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.query import CONJUNCTIVE, InteriorPrior, QueryBatch
from tests.benchmarks.test_query_split import triples

SETTINGS = PropagationSettings(start="mixed", num_random=2, iterations=3, seed=4)
PART = {"valid": "val", "test": "test"}


@pytest.fixture(scope="module")
def data():
    whole = inductive_query_split(triples(700, 80), train_fraction=0.5, seed=1)
    wanted = dict.fromkeys(TYPES, 12)
    return sample_queries(whole, {"valid": wanted, "test": wanted}, seed=1)


def built(task, kge="rotate", width=4):
    model = build_model(
        kge,
        num_nodes=task.completion.train.num_nodes,
        num_relations=task.completion.num_relations,
        hidden_channels=width,
    )
    model.reset_parameters(seed=0)
    return model


def other_triples(data, split, seed=0):
    """As many triples among the candidates of a split that are none of its own."""
    g = torch.Generator().manual_seed(seed)
    among, count = data.candidates(split), len(data.graphs[f"{PART[split]}_predict"])
    ends = among[torch.randint(len(among), (2, count), generator=g)]
    relation = torch.randint(len(data.relations), (count,), generator=g)
    return torch.stack([ends[0], relation, ends[1]], dim=1)


@pytest.mark.parametrize("kge", ["transe", "rotate"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_nothing_known_depends_on_what_is_to_be_predicted(data, split, kge):
    """Vectors, prior and heuristic are those of the observed graph, whatever is true beside it."""
    graphs = {**data.graphs, f"{PART[split]}_predict": other_triples(data, split)}
    found = []
    for each in (data, replace(data, graphs=graphs)):
        task = QueryTask(each, split, inverse_relations=False)
        model = built(task, kge)
        x = InductivePropagation(model, task.completion, SETTINGS).vectors()
        scorer = task.scorer(model, x, SETTINGS, interior_prior=True)
        batch = task.queries("pi", None)[0]
        prior = scorer.elimination.prior
        scores = scorer.score(batch), task.heuristic().score(batch)
        found.append((x, prior.centre, prior.entries, *scores))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_observed_graph_is_known_whole(data, split):
    """What is observed counts: without half of it, everything is another."""
    name = f"{PART[split]}_inference"
    batch = QueryTask(data, split, False).queries("2i", None)[0]
    graphs = {**data.graphs, name: data.graphs[name].flip(0)[: len(data.graphs[name]) // 2]}
    found = []
    for each in (data, replace(data, graphs=graphs)):
        task = QueryTask(each, split, inverse_relations=False)
        model = built(task)
        labels = data.entities.labels[data.num_entities[0] - 1]
        row = int(task.completion.inference.entities.ids([labels]))
        x = InductivePropagation(model, task.completion, SETTINGS).vectors()
        prior = task.scorer(model, x, SETTINGS, interior_prior=True).elimination.prior
        assert row < len(x)
        found.append((prior.centre, prior.entries, task.heuristic().score(batch)))
    for one, other in zip(*found, strict=True):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_prior_is_that_of_the_facts_and_entities_of_the_split(data, split):
    task = QueryTask(data, split, inverse_relations=False)
    model, known = built(task), task.completion.inference
    assert len(data.entities) > known.num_nodes  # the other split has entities of its own
    g = torch.Generator().manual_seed(2)
    x = torch.randn(known.num_nodes, 3, 4, dtype=torch.complex64, generator=g) + 3
    prior = task.scorer(model, x, SETTINGS, interior_prior=True).elimination.prior
    expected = InteriorPrior.of_facts(model.sheaf(), x, known.triples)
    torch.testing.assert_close(prior.centre, expected.centre)
    torch.testing.assert_close(prior.entries, expected.entries)
    # The share of the variance of all vectors, which zero vectors would enlarge.
    y = x.to(torch.complex128)
    whole = (y - y.mean(0)).abs().square().mean()
    noise = InteriorPrior.of_facts(model.sheaf(), x, known.triples).entries
    head, relation, tail = known.triples.T
    source = torch.cat([head, tail])
    leaves = torch.cat([relation, relation + known.num_relations])
    rotation = model.sheaf().head.to(y)[relation][:, None]
    residual = (rotation * y[head] - y[tail]).abs().square().mean()
    for relation in leaves.unique().tolist():
        own = y[source[leaves == relation]]
        variance = (own - own.mean(0)).abs().square().mean((0, 1))
        torch.testing.assert_close(
            noise[relation], residual / (variance + 0.01 * whole), rtol=1e-4, atol=0.0
        )


def test_scores_with_prior_are_those_of_a_model_that_holds_the_split(data):
    """As :meth:`SheafModel.answer` has them, whose entities are those of the split alone."""
    task = QueryTask(data, "test", inverse_relations=False)
    model, known = built(task), task.completion.inference
    g = torch.Generator().manual_seed(3)
    x = torch.randn(known.num_nodes, 1, 4, dtype=torch.complex64, generator=g)
    whole = build_model("rotate", num_nodes=len(x), num_relations=known.num_relations,
                        hidden_channels=4)  # fmt: skip
    with torch.no_grad():
        whole.rel_emb.weight.copy_(model.rel_emb.weight)
        whole.node_emb.weight.copy_(torch.view_as_real(x[:, 0]).reshape(len(x), -1))
    x = whole.entity_vectors().detach().unsqueeze(1)
    entities = Vocabulary(known.entities.labels, kind="entities")
    count = 2 * known.num_relations
    served = SheafModel(
        StoredModel(
            model=whole,
            entities=entities,
            relations=known.relations,
            origins=("trained",) * len(x),
            facts=known.triples,
            prototypes=RelationPrototypes(
                torch.zeros(count, 4, dtype=torch.complex64), torch.zeros(count, dtype=torch.int64)
            ),
            residual_variance=torch.zeros(known.num_relations),
        )
    )
    batch = task.queries("2p", None)[0][:3]
    scorer = task.scorer(model, x, PropagationSettings(start="zeros"), interior_prior=True)
    slots = batch.slots.clone()
    slots[:, 1:] = task.relations[slots[:, 1:]]
    scores = scorer.score(QueryBatch(batch.shape, slots))
    for row, (entity, *path) in enumerate(batch.slots.tolist()):
        query = data.entities.labels[entity]
        for relation in path:
            inverse, own = divmod(relation, len(data.relations))
            label = data.relations.labels[own]
            query = f"via({f'inverse({label})' if inverse else label}, {query})"
        answers = served.answer(query, k=len(x), interior="free", prior=True)
        ids = data.entities.ids(answers["answer"].tolist())
        expected = torch.tensor(answers["score"].tolist(), dtype=scores.dtype)
        torch.testing.assert_close(scores[row, ids], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prior", [False, True])
def test_a_cell_takes_the_prior_on_validation_and_on_test(data, tmp_path, monkeypatch, prior):
    config = replace(
        query_config("best", "550", "rotate"), interior_prior=prior, max_epochs=-1, max_steps=2,
        iterations=(1, 2), model=query_config("best", "550", "rotate").model
        | {"hidden_channels": 4},
    )  # fmt: skip
    seen = []
    rank = QueryTask.rank

    def watched(self, scorer, kind, limit=None):
        seen.append((self.split, scorer.elimination.prior is not None))
        return rank(self, scorer, kind, limit)

    monkeypatch.setattr(QueryTask, "rank", watched)
    monkeypatch.setattr(query_cell, "read_queries", lambda place, ratio: data)
    query_cell.run_cell(tmp_path, "550", config, 0, folder=tmp_path)
    assert seen == [("valid", prior)] * 2 * len(CONJUNCTIVE) + [("test", prior)] * len(TYPES)


def test_what_a_cell_chooses_depends_on_no_test_triple(data):
    """Training sees the training graph alone, selection validation alone."""
    config = replace(
        query_config("best", "550", "transe"), max_epochs=-1, max_steps=3, iterations=(1, 2, 4),
        model=query_config("best", "550", "transe").model | {"hidden_channels": 4},
    )  # fmt: skip
    graphs = dict(data.graphs)
    for name in ("test_inference", "test_predict"):
        graphs[name] = graphs[name][:5]
    found = []
    for each in (data, replace(data, graphs=graphs)):
        valid = QueryTask(each, "valid", config.inverse_relations)
        model, _ = query_cell.train(config, valid.completion, 0)
        settings, value = query_cell.choose_settings(valid, model, config, 0)
        found.append((settings, value, model.node_emb.weight.tolist()))
    assert found[0] == found[1]
    graphs = {**data.graphs, "val_inference": data.graphs["val_inference"].flip(0)[:200]}
    other = QueryTask(replace(data, graphs=graphs), "valid", config.inverse_relations)
    model, _ = query_cell.train(config, other.completion, 0)
    assert model.node_emb.weight.tolist() == found[0][2]


def test_fewer_iterations_win_a_tie(data, monkeypatch):
    task = QueryTask(data, "valid", inverse_relations=False)
    config = replace(query_config("best", "550", "rotate"), iterations=(1, 2, 5))
    rankings = iter([0.25, 0.5, 0.5])
    monkeypatch.setattr(
        query_cell,
        "validation_rankings",
        lambda *_: ((count, [next(rankings)]) for count in config.iterations),
    )
    monkeypatch.setattr(query_cell, "mean_hits", lambda found, averaging: found[0])
    chosen, value = query_cell.choose_settings(task, None, config, 0)
    assert (chosen.iterations, value) == (2, 0.5)


def test_fewer_iterations_win_a_tie_of_a_learning_curve(monkeypatch):
    found = [(1, 0.25), (2, 0.5), (5, 0.5)]
    monkeypatch.setattr(query_cell, "validation_rankings", lambda *_: iter(found))
    monkeypatch.setattr(query_cell, "mean_hits", lambda value, averaging: value)
    config = replace(query_config("best", "550", "rotate"), max_steps=8)
    assert query_cell.LearningCurve(None, config, 0).best(None)["iterations"] == 2
