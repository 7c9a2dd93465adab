"""Logical queries: language, answers by sheaf energy, exact answers on a graph, evaluation."""

from sheafprop.query.parser import parse_query
from sheafprop.query.query import Query
from sheafprop.query.query_answer import QueryAnswer
from sheafprop.query.query_answering import QueryAnswering
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_shape import QueryShape
from sheafprop.query.structures import CONJUNCTIVE, STRUCTURES, structure

__all__ = [
    "CONJUNCTIVE",
    "STRUCTURES",
    "Query",
    "QueryAnswer",
    "QueryAnswering",
    "QueryBatch",
    "QueryShape",
    "parse_query",
    "structure",
]
