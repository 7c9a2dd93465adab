"""Logical queries: language, answers by sheaf energy, exact answers on a graph, evaluation."""

from sheafprop.data.answer_sets import AnswerSets
from sheafprop.query.evaluation import evaluate_queries
from sheafprop.query.graph_executor import GraphExecutor, easy_and_hard
from sheafprop.query.interior_prior import InteriorPrior
from sheafprop.query.parser import parse_query
from sheafprop.query.query import Query
from sheafprop.query.query_answer import QueryAnswer
from sheafprop.query.query_answering import QueryAnswering
from sheafprop.query.query_batch import QueryBatch
from sheafprop.query.query_edge_heuristic import QueryEdgeHeuristic
from sheafprop.query.query_ranking import QueryRanking
from sheafprop.query.query_scorer import QueryScorer
from sheafprop.query.query_shape import QueryShape
from sheafprop.query.sampling import sample_queries
from sheafprop.query.structures import CONJUNCTIVE, STRUCTURES, structure

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
