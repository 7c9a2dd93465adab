import math

import pytest
import torch
from benchmarks import training_benchmark, transductive
from benchmarks.cells import read_records
from benchmarks.transductive_data import TransductiveData

from sheafprop.data import KnowledgeGraph
from sheafprop.data.vocabulary import Vocabulary
from sheafprop.training import SheafCompletion

# PyKEEN is loaded by the code under test alone.
pytest.importorskip("pykeen")
from benchmarks.pykeen_baseline import PyKEENBaseline

TRAINING = {
    "transe": {"hidden_channels": 6, "loss": "cross_entropy", "lr": 0.05},
    "rotate": {
        "hidden_channels": 4,
        "kge_args": {"entity_constraint": None},
        "loss": "nssa",
        "loss_args": {"margin": 3.0},
        "num_negatives": 4,
        "lr": 0.05,
    },
}


@pytest.fixture(scope="module")
def data():
    """Random triples of which several answer the same query, so that filtering matters."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([20, 3, 20])
    triples = (torch.rand(400, 3, generator=generator) * sizes).long().unique(dim=0)
    triples = triples[torch.randperm(len(triples), generator=generator)]
    train = KnowledgeGraph.from_triples(
        triples[80:],
        entities=Vocabulary([f"e{i}" for i in range(20)]),
        relations=Vocabulary(["a", "b", "c"]),
    )
    return TransductiveData("random", train, triples[:40], triples[40:80])


@pytest.mark.parametrize("name", list(TRAINING))
def test_ranks_of_the_same_parameters_are_those_of_pykeen(data, name):
    model = SheafCompletion(kge=name, **TRAINING[name]).build(20, 3).double()
    baseline = PyKEENBaseline(model, data, TRAINING[name])
    baseline.model.double()
    baseline.load(model)
    theirs, mrr = baseline.rank(7)
    ours = transductive.rank(model, data)
    for side in ("head", "tail"):
        assert torch.equal(ours.ranks(side).double(), theirs[side].double())
    assert ours.metrics("full")["mrr"] == pytest.approx(mrr, abs=1e-6)


@pytest.mark.parametrize("name", list(TRAINING))
def test_both_libraries_learn_from_the_same_start(data, name):
    training = TRAINING[name]
    module = SheafCompletion(kge=name, seed=0, **training)
    epochs = []
    trained, _ = transductive.train(module, data, 12, 32, lambda: epochs.append(1))
    assert len(epochs) == 12
    start = module.build(20, 3)
    baseline = PyKEENBaseline(start, data, training)
    baseline.train(12, 32, lambda: epochs.append(1))
    assert len(epochs) == 24
    seen = TransductiveData("seen", data.train, data.valid, data.train.triples)
    before = transductive.rank(start, seen).metrics("full")["mrr"]
    ours = transductive.rank(trained, seen).metrics("full")["mrr"]
    theirs = PyKEENBaseline(start, seen, training)
    theirs.model = baseline.model
    assert ours > before + 0.05
    assert theirs.rank(32)[1] > before + 0.05


@pytest.mark.parametrize("constraint", ["unit", None])
def test_both_libraries_make_the_same_steps(data, constraint):
    """One batch holds all triples, so that their order does not matter."""
    training = TRAINING["transe"] | {
        "kge_args": {"entity_constraint": constraint},
        "loss_args": {"label_smoothing": 0.1},
    }
    module = SheafCompletion(kge="transe", seed=0, **training)
    size = len(data.train.triples)
    start = module.build(20, 3)
    ours, _ = transductive.train(module, data, 5, size, lambda: None)
    baseline = PyKEENBaseline(start, data, training)
    baseline.train(5, size, lambda: None)
    for parameter, representation, before in (
        (ours.node_emb.weight, baseline.model.entity_representations[0], start.node_emb.weight),
        (ours.rel_emb.weight, baseline.model.relation_representations[0], start.rel_emb.weight),
    ):
        torch.testing.assert_close(parameter, representation(), rtol=0.0, atol=2e-5)
        assert (parameter - before).abs().max() > 0.05


def test_both_libraries_have_the_same_loss_of_the_same_negatives(data):
    from pykeen.sampling import BasicNegativeSampler

    training = TRAINING["rotate"]
    module = SheafCompletion(kge="rotate", seed=0, **training)
    model = module.build(20, 3).double()
    baseline = PyKEENBaseline(model, data, training)
    theirs = baseline.model.double()
    baseline.load(model)
    batch = data.train.triples[:32]
    sampler = BasicNegativeSampler(
        mapped_triples=batch, num_entities=20, num_relations=3, num_negs_per_pos=4
    )
    negative = sampler.corrupt_batch(batch)
    at_head = negative[..., 0] != batch[:, None, 0]
    entity = torch.where(at_head, negative[..., 0], negative[..., 2])
    x = model.entity_vectors()
    loss = module.batch_loss.loss(
        model.score_triples(x, *batch.unbind(1)), model.score_replaced(x, batch, entity, at_head)
    )
    loss.backward()
    expected = theirs.loss.process_slcwa_scores(
        theirs.score_hrt(batch), theirs.score_hrt(negative.view(-1, 3)).view(32, 4)
    )
    expected.backward()
    torch.testing.assert_close(loss, expected)
    weight = theirs.entity_representations[0]._embeddings.weight
    torch.testing.assert_close(model.node_emb.weight.grad, weight.grad)


def test_what_pykeen_does_not_have_is_refused(data):
    training = TRAINING["transe"] | {"kge_args": {"squared": True}}
    model = SheafCompletion(kge="transe", **training).build(20, 3)
    with pytest.raises(ValueError, match="TransE and RotatE with p=2"):
        PyKEENBaseline(model, data, training)
    training = TRAINING["rotate"] | {"kge_args": {"entity_constraint": "unit"}}
    model = SheafCompletion(kge="rotate", **training).build(20, 3)
    with pytest.raises(ValueError, match="no constraint"):
        PyKEENBaseline(model, data, training)


def test_a_shortened_data_set_keeps_entities_and_relations(data):
    short = data.shorten(30, 10)
    assert (short.num_nodes, short.num_relations) == (20, 3)
    assert (len(short.train.triples), len(short.test)) == (30, 10)
    known = {tuple(t) for t in data.train.triples.tolist()}
    assert {tuple(t) for t in short.train.triples.tolist()} <= known


def test_the_benchmark_compares_ranks_and_divides_times(data, monkeypatch):
    monkeypatch.setattr(training_benchmark, "TRAINING", TRAINING)
    monkeypatch.setattr(training_benchmark, "in_own_process", lambda function, *a: function(*a))
    monkeypatch.setattr(
        training_benchmark.TransductiveData, "load", classmethod(lambda cls, name: data)
    )
    case = training_benchmark.TrainingCase("random", "rotate", 16, 64, 20)
    found = training_benchmark.measure(case)
    for task in ("epoch", "ranking"):
        ratio = found[f"seconds_{task}_pykeen"] / found[f"seconds_{task}"]
        assert found[f"ratio_{task}"] == pytest.approx(ratio)
        assert math.isfinite(ratio)
    theirs = training_benchmark._theirs

    def wrong(*arguments):
        seconds, ranks = theirs(*arguments)
        return seconds, ranks | {"tail": ranks["tail"] + 1}

    monkeypatch.setattr(training_benchmark, "_theirs", wrong)
    with pytest.raises(AssertionError, match="20 ranks of tails differ"):
        training_benchmark.measure(case)


def test_a_case_that_is_measured_again_replaces_the_old_one(at_once, monkeypatch, tmp_path):
    ratios = iter(range(1, 5))
    monkeypatch.setattr(
        training_benchmark,
        "measure",
        lambda case: {"ratio_epoch": next(ratios), "ratio_ranking": 1.0},
    )
    out = tmp_path / "t.jsonl"
    for model in ("transe", "rotate", "transe"):
        words = ["--datasets", "codex-s", "--models", model, "--runs", "1", "--results", str(out)]
        training_benchmark.main(words)
    found = {case["model"]: case["ratio_epoch"] for case in read_records(out)}
    assert found == {"transe": 3, "rotate": 2}


def test_the_check_is_resumed_by_model_and_library(at_once, monkeypatch, tmp_path, capsys):
    done = []

    def cell(name, library, epochs, *, folder):
        done.append((name, library))
        if len(done) == 2:
            raise KeyboardInterrupt
        return [{"mrr": 0.25}]

    monkeypatch.setattr(transductive, "run_cell", cell)
    monkeypatch.setattr(transductive.TransductiveData, "check", lambda name: None)
    words = ["--models", "transe", "--results", str(tmp_path / "t.jsonl")]
    with pytest.raises(SystemExit) as stop:
        transductive.main(words)
    assert stop.value.code == 130
    transductive.main(words)
    assert done == [("transe", "sheafprop"), ("transe", "pykeen"), ("transe", "pykeen")]
    assert len(read_records(tmp_path / "t.jsonl")) == 2
    assert capsys.readouterr().out.count("MRR 0.2500") == 2
    # Cells that were trained for another number of epochs are not those asked for.
    transductive.main([*words, "--epochs", "2"])
    assert len(done) == 5
