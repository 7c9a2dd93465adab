import pytest
import torch

from sheafprop.inductive.candidate_scorer import CandidateScorer
from sheafprop.kge import build_model
from sheafprop.pretrained.blocks import RowBlocks


@pytest.fixture
def use_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(
    ("name", "kge_args"),
    [
        ("transe", {"p": 2}),
        ("transe", {"p": 1}),
        ("rotate", {}),
        ("pairre", {}),
        ("se", {}),
        ("transr", {}),
    ],
)
def test_scores_do_not_depend_on_the_number_of_threads(name, kge_args, queries, use_threads):
    width = 16 if name == "rotate" else 32
    model = build_model(name, num_nodes=2, num_relations=4, hidden_channels=width, **kge_args)
    model.reset_parameters(seed=3)
    g = torch.Generator().manual_seed(5)
    dtype = torch.complex64 if model.is_complex else torch.float32
    # More rows than any chunk has.
    rows = torch.randn(140_000, 1, width, generator=g, dtype=dtype)
    known, relation = rows[:queries], torch.arange(queries)
    found = []
    for threads in (1, 2, 5):
        use_threads(threads)
        scorer = CandidateScorer(model, model.sheaf(), RowBlocks([rows]), [1.0])
        found.append(scorer.scores(known, relation, "tail"))
        assert torch.get_num_threads() == threads
    some = torch.arange(0, 140_000, 9973)
    reference = model.double().score_candidates(
        known[:, 0].to(torch.promote_types(dtype, torch.float64)),
        relation,
        rows[some, 0].to(torch.promote_types(dtype, torch.float64)),
        "tail",
    )
    # Squares of distances are sums of 32 terms, none above 4 times the greatest of them: each of at
    # most 64 roundings (map, translation, product, sum) costs a unit.
    error = 64 * 4 * torch.finfo(torch.float32).eps * reference.square().max()
    for scores in found:
        assert (scores[:, some].square() - reference.square()).abs().max() <= error
        assert (scores.square() - found[0].square()).abs().max() <= 2 * error
