"""Collectives of 2 and 4 ranks; what differs between ranks, and what one refuses."""

import pytest
import torch

from sheafprop.distributed import RankError
from sheafprop.errors import DataError


@pytest.fixture(params=[2, 4])
def pool(request):
    return request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])


def _reduce(ranks, dtype):
    x = torch.tensor([ranks.rank + 1, 2], dtype=dtype)
    again = ranks.all_reduce(x)
    assert again is x
    highest = ranks.all_reduce(torch.tensor([ranks.rank]), "max")
    lowest = ranks.all_reduce(torch.tensor([ranks.rank + 5]), "min")
    sent = ranks.broadcast(torch.full((2,), ranks.rank, dtype=dtype), source=1)
    return x, int(highest), int(lowest), sent, ranks.gather({"rank": ranks.rank})


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.long])
def test_sums_and_extremes_are_those_of_all_ranks(pool, dtype):
    size = pool.size
    for x, highest, lowest, sent, gathered in pool.run(_reduce, dtype):
        assert x.equal(torch.tensor([size * (size + 1) // 2, 2 * size], dtype=dtype))
        assert (highest, lowest) == (size - 1, 5)
        assert sent.equal(torch.ones(2, dtype=dtype))
        assert gathered == [{"rank": rank} for rank in range(size)]


def _exchange(ranks, shape, dtype, piece_bytes):
    # Rank a sends (a * b + shift) % 4 rows to rank b, each with its sender, receiver and number.
    def count(a, b):
        return (a * b + a) % 4

    def rows(a, b):
        own = torch.arange(count(a, b)) + 100 * a + 10 * b
        return own.view(-1, *[1] * len(shape)).expand(-1, *shape).to(dtype)

    sent = [count(ranks.rank, b) for b in range(ranks.size)]
    received, most = ranks.exchange_counts(sent)
    assert received == [count(a, ranks.rank) for a in range(ranks.size)]
    before = ranks.bytes_sent
    give = torch.cat([rows(ranks.rank, b) for b in range(ranks.size)]).contiguous()
    got = torch.full((sum(received), *shape), -1, dtype=dtype)
    wait = ranks.start_exchange(
        got, give, received=received, sent=sent, most=most, piece_bytes=piece_bytes
    )
    wait()
    want = torch.cat([rows(a, ranks.rank) for a in range(ranks.size)])
    foreign = sum(sent) - sent[ranks.rank]
    row_bytes = give.element_size() * torch.Size(shape).numel()
    return bool(got.equal(want)), ranks.bytes_sent - before == foreign * row_bytes, most


@pytest.mark.parametrize("piece_bytes", [2**28, 64, 1])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((3,), torch.float32), ((2, 2), torch.complex128), ((), torch.long)]
)
def test_rows_arrive_in_order_of_ranks_also_in_pieces(pool, shape, dtype, piece_bytes):
    found = pool.run(_exchange, shape, dtype, piece_bytes)
    assert all(equal and counted for equal, counted, _ in found)
    assert {most for _, _, most in found} == {2 if pool.size == 2 else 3}


def _compare(ranks, differ):
    ranks.compare("the facts", torch.arange(5), ["a", "b"])
    try:
        ranks.compare("the facts", torch.arange(5) + (ranks.rank == differ), ["a", "b"])
    except RankError as error:
        return str(error), error.silent
    return None


def test_inputs_that_differ_are_refused_by_all_ranks(pool):
    last = pool.size - 1
    found = pool.run(_compare, last)
    for rank, (message, silent) in enumerate(found):
        assert f"the facts of rank {last} of {pool.size} (" in message
        assert silent is (rank > 0)
    assert pool.run(_compare, 9) == [None] * pool.size


def _refuse(ranks, refused):
    def read():
        if ranks.rank in refused:
            raise DataError("facts.tsv: line 3 has two fields")
        return ranks.rank

    try:
        return ranks.run_together(read)
    except (DataError, RankError) as error:
        return type(error).__name__, str(error), getattr(error, "silent", False)


def test_what_one_rank_refuses_all_refuse(pool):
    assert pool.run(_refuse, []) == list(range(pool.size))
    found = pool.run(_refuse, [1])
    assert found[1] == ("DataError", "facts.tsv: line 3 has two fields", False)
    name, message, silent = found[0]
    assert (name, silent) == ("RankError", True)
    assert message.startswith(f"rank 1 of {pool.size} (")
    assert message.endswith("refused: facts.tsv: line 3 has two fields")
    # One of those with the same message prints it.
    printed = [not silent for _, _, silent in pool.run(_refuse, list(range(pool.size)))]
    assert printed == [True] + [False] * (pool.size - 1)
