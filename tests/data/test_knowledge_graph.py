import copy
import pickle
import warnings

import pytest
import torch
from torch_geometric.data import Batch, Data

from sheafprop.data import KnowledgeGraph, Vocabulary
from sheafprop.errors import DataError, UnknownRelationError

LABELS = [("a", "r", "b"), ("b", "s", "c"), ("a", "r", "b"), ("c", "s", "c")]


def make_graph(**extra):
    graph = KnowledgeGraph.from_labels(LABELS)
    for key, value in extra.items():
        graph[key] = value
    return graph


def test_from_labels_keeps_order_and_repetitions():
    graph = make_graph()
    assert isinstance(graph, Data)
    assert graph.edge_index.tolist() == [[0, 1, 0, 2], [1, 2, 1, 2]]
    assert graph.edge_type.tolist() == [0, 1, 0, 1]
    assert graph.triples.tolist() == [[0, 0, 1], [1, 1, 2], [0, 0, 1], [2, 1, 2]]
    assert (graph.num_nodes, graph.num_relations, graph.num_edges) == (3, 2, 4)
    assert graph.entities.labels == ("a", "b", "c")
    assert graph.relations.labels == ("r", "s")
    assert graph.edge_index.is_contiguous()


def test_ids_of_entities_follow_heads_before_tails():
    graph = KnowledgeGraph.from_labels([("z", "r", "a"), ("b", "r", "z")])
    assert graph.entities.labels == ("z", "a", "b")


def test_from_labels_with_fixed_vocabularies():
    entities = Vocabulary(["c", "b", "a", "x", "y"], kind="entities")
    relations = Vocabulary(["s", "r", "unused"], kind="relations")
    with pytest.warns(UserWarning, match="2 of the 5 entities occur in no triple"):
        graph = KnowledgeGraph.from_labels(LABELS, entities=entities, relations=relations)
    assert graph.edge_index[:, 0].tolist() == [2, 1]
    assert (graph.num_nodes, graph.num_relations) == (5, 3)
    with pytest.raises(DataError, match=r"entities: 'a'"):
        KnowledgeGraph.from_labels(LABELS, entities=Vocabulary(["b", "c"], kind="entities"))
    with pytest.raises(UnknownRelationError, match=r"1 relations: 's'"):
        KnowledgeGraph.from_labels(LABELS, relations=Vocabulary(["r"], kind="relations"))


def test_no_warning_when_all_entities_are_used():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_graph()


def test_from_triples_takes_numbers_from_ids_labels_or_the_caller():
    triples = torch.tensor([[0, 1, 3], [3, 0, 1]])
    graph = KnowledgeGraph.from_triples(triples)
    assert (graph.num_nodes, graph.num_relations) == (4, 2)
    assert torch.equal(graph.triples, triples)
    assert graph.has_isolated_nodes()
    graph = KnowledgeGraph.from_triples(triples, num_nodes=9, num_relations=5)
    assert (graph.num_nodes, graph.num_relations) == (9, 5)
    graph = KnowledgeGraph.from_triples(triples, entities=Vocabulary("abcdef"))
    assert graph.num_nodes == 6
    empty = KnowledgeGraph.from_triples(torch.empty(0, 3, dtype=torch.int64))
    assert (empty.num_nodes, empty.num_relations, empty.triples.shape) == (0, 0, (0, 3))


def test_what_is_missing_is_none():
    graph = KnowledgeGraph()
    for key in (
        "edge_index",
        "edge_type",
        "num_relations",
        "entities",
        "relations",
    ):
        assert getattr(graph, key) is None
    with pytest.raises(DataError, match="no triples"):
        _ = graph.triples


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": torch.tensor([[0, 1], [1, 2], [0, 1], [2, 2]])}, r"\[4, 2\]\).*Transpose"),
        ({"edge_index": torch.tensor([0, 1])}, r"got \[2\]"),
        ({"edge_type": torch.tensor([0, 1])}, r"4 edges \(got shape \[2\]\)"),
        ({"edge_type": torch.tensor([0, 1, 0, 2])}, r"0 to 1, for 2 relations \(got 2"),
        ({"edge_type": torch.tensor([0, -1, 0, 1])}, r"got -1"),
        ({"edge_type": torch.tensor([0.0, 1, 0, 1])}, r"int64 \(got torch.float32\)"),
        ({"edge_index": torch.full((2, 4), 5)}, r"0 to 2, for 3 entities \(got 5; 8 ids"),
        ({"num_nodes": 2}, r"0 to 1, for 2 entities \(got 2"),
        ({"num_nodes": 7}, r"'entities' must have 7 entries \(got 3\)"),
        ({"num_relations": 9}, r"'relations' must have 9 entries \(got 2\)"),
        (
            {"boundary_mask": torch.ones(5, dtype=torch.bool)},
            r"'boundary_mask' must have 3 .*\(got 5\)",
        ),
    ],
)
def test_validate_ids(changes, message):
    make_graph().validate_ids()
    with pytest.raises(DataError, match=message):
        make_graph(**changes).validate_ids()


def test_from_triples_refuses_what_does_not_fit():
    with pytest.raises(DataError, match=r"0 to 3, for 4 entities \(got 5"):
        KnowledgeGraph.from_triples(torch.tensor([[0, 0, 5]]), num_nodes=4)
    with pytest.raises(DataError, match=r"\[num_edges, 3\] \(got \[3, 2\]\)"):
        KnowledgeGraph.from_triples(torch.zeros(3, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    "through",
    [
        copy.copy,
        copy.deepcopy,
        lambda graph: graph.clone(),
        lambda graph: graph.to("cpu"),
        lambda graph: pickle.loads(pickle.dumps(graph)),
        lambda graph: KnowledgeGraph.from_dict(graph.to_dict()),
    ],
    ids=["copy", "deepcopy", "clone", "to", "pickle", "dict"],
)
def test_survives_what_pyg_does_with_data(through):
    graph = make_graph(
        target_edge_index=torch.tensor([[0], [2]]), target_edge_type=torch.tensor([1])
    )
    other = through(graph)
    assert type(other) is KnowledgeGraph
    assert torch.equal(other.triples, graph.triples)
    assert (other.num_nodes, other.num_relations) == (3, 2)
    assert other.entities == graph.entities
    assert other.relations == graph.relations
    assert torch.equal(other.target_edge_index, graph.target_edge_index)
    other.validate_ids()


def test_to_another_device_moves_all_tensors():
    moved = make_graph().to("meta")
    assert moved.edge_index.is_meta
    assert moved.edge_type.is_meta
    assert moved.num_relations == 2


def test_batch_shifts_entities_and_keeps_relations():
    targets = {"target_edge_index": torch.tensor([[0], [2]]), "target_edge_type": torch.tensor([1])}
    batch = Batch.from_data_list([make_graph(**targets), make_graph(**targets)])
    assert batch.num_nodes == 6
    assert batch.edge_index[:, 4:].tolist() == [[3, 4, 3, 5], [4, 5, 4, 5]]
    assert batch.edge_type.tolist() == [0, 1, 0, 1] * 2
    assert batch.target_edge_index.tolist() == [[0, 3], [2, 5]]
    assert batch.target_edge_type.tolist() == [1, 1]
    assert [len(entities) for entities in batch.entities] == [3, 3]
    second = batch[1]
    second.validate_ids()
    assert torch.equal(second.triples, make_graph().triples)
    assert second.num_relations == 2


def test_repr_is_one_line():
    assert repr(make_graph()) == (
        "KnowledgeGraph(edge_index=[2, 4], edge_type=[4], num_nodes=3, num_relations=2, "
        "entities=Vocabulary(3 entities), relations=Vocabulary(2 relations))"
    )
