import numpy as np
import pytest
import torch

from sheafprop.data import Vocabulary
from sheafprop.pretrained.fact_answers import FactAnswers, FactExecutor
from sheafprop.pretrained.fact_index import FactIndex
from sheafprop.query import GraphExecutor, QueryBatch, parse_query
from sheafprop.ranking import TripleFilter

N, R = 9, 3
QUERIES = [
    "via(r0, e1)",
    "via(inverse(r2), e3)",
    "via(r1, via(inverse(r0), e4))",
    "and(via(r0, e1), not(via(r1, e2)))",
    "or(via(r0, e1), via(inverse(r1), e2))",
]


@pytest.fixture
def facts():
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(N, (2, 60), generator=g)
    return torch.stack([ends[0], torch.randint(R, (60,), generator=g), ends[1]], dim=1)


def test_facts_are_those_of_a_list(facts):
    own, listed = FactAnswers(FactIndex(facts)), TripleFilter(facts, N, R)
    for relation in range(R):
        for ids in ([*range(N)], [5, 2], [4, 4], []):
            entities = torch.tensor(ids, dtype=torch.int64)
            kinds = torch.full_like(entities, relation)
            for one, other in (
                (own.tails(entities, kinds), listed.tails(entities, kinds)),
                (own.heads(kinds, entities), listed.heads(kinds, entities)),
            ):
                assert torch.equal(torch.stack(one), torch.stack(other))


def test_answers_are_those_of_a_list(facts):
    entities = Vocabulary([f"e{i}" for i in range(N)])
    relations = Vocabulary([f"r{i}" for i in range(R)])
    index = FactIndex(facts[:40]).append(facts[40:])
    own, listed = FactExecutor(index, N, R), GraphExecutor(facts, N, R)
    queries = [parse_query(text) for text in QUERIES]
    for batch, _ in QueryBatch.from_queries(queries, entities, relations):
        one, other = own.answers(batch), listed.answers(batch)
        assert np.array_equal(one.start, other.start)
        assert np.array_equal(one.values, other.values)
    assert repr(own) == "FactExecutor(60 triples, num_entities=9, num_relations=3)"
