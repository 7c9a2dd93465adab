"""Logical queries: language, answers by sheaf energy, exact answers on a graph, evaluation."""

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.query.evaluation import QueryRanking, QueryScorer, evaluate_queries
from sheafprop.query.graph_executor import GraphExecutor, easy_and_hard
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.query.parser import parse_query
from sheafprop.query.query import Query
from sheafprop.query.query_answering import QueryAnswer, QueryAnswering
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_edge_heuristic import QueryEdgeHeuristic
from sheafprop.query.query_shape import CONJUNCTIVE, STRUCTURES, QueryShape, structure
from sheafprop.query.sampling import sample_queries

__all__ = [
    "CONJUNCTIVE",
    "STRUCTURES",
    "AnswerSets",
    "GraphExecutor",
    "InteriorPrior",
    "Query",
    "QueryAnswer",
    "QueryAnswering",
    "QueryBatch",
    "QueryEdgeHeuristic",
    "QueryRanking",
    "QueryScorer",
    "QueryShape",
    "easy_and_hard",
    "evaluate_queries",
    "parse_query",
    "sample_queries",
    "structure",
]
