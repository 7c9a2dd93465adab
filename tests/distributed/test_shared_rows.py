"""Rows that go through memory of ranks of one host: which, when, and what is left behind."""

import contextlib
import logging
import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.distributed.distributed_c10d import _get_default_store

from sheafprop.distributed.halo_exchange import HaloExchange
from sheafprop.distributed.shared_rows import SharedRows


def _count(a, b):
    """Rows that rank ``a`` sends to rank ``b``."""
    return 0 if a == b else (2 * a + 3 * b) % 5


def _exchange(ranks, piece_bytes=2**28):
    sent = [torch.arange(_count(ranks.rank, b)).flip(0) for b in range(ranks.size)]
    received = [_count(a, ranks.rank) for a in range(ranks.size)]
    return HaloExchange(ranks, sent, received, 5, piece_bytes)


def _rows(rank, step, shape, dtype):
    own = (1000 * step + 100 * rank + torch.arange(5)).view(-1, *[1] * len(shape))
    return own.expand(-1, *shape).to(dtype)


def _run(ranks, exchange, steps, shape=(2,), dtype=torch.float32):
    """Whether the halo has the rows of each of some steps."""
    equal = []
    for step in range(steps):
        buffer = torch.full((5 + exchange.num_halo, *shape), -1, dtype=dtype)
        buffer[:5] = _rows(ranks.rank, step, shape, dtype)
        exchange.run(buffer)
        wanted = [
            _rows(a, step, shape, dtype)[: _count(a, ranks.rank)].flip(0) for a in range(ranks.size)
        ]
        equal.append(torch.equal(buffer[5:], torch.cat(wanted)))
    return equal


def _routes(exchange):
    return [type(route).__name__ for route in next(iter(exchange._routes.values()))]


@contextlib.contextmanager
def _hosts(ranks, hosts):
    before, ranks.hosts = ranks.hosts, hosts
    try:
        yield
    finally:
        ranks.hosts = before


def _run_on_hosts(ranks, hosts, piece_bytes, shape, dtype):
    with _hosts(ranks, hosts):
        exchange = _exchange(ranks, piece_bytes)
        equal = _run(ranks, exchange, 4, shape, dtype)
    row_bytes = torch.Size(shape).numel() * dtype.itemsize
    sent = sum(_count(ranks.rank, b) for b in range(ranks.size)) * row_bytes
    return all(equal), exchange.bytes_sent == 4 * sent, _routes(exchange)


@pytest.mark.parametrize(
    ("hosts", "routes"),
    [
        ("aaaa", ["SharedRows"]),
        ("aabb", ["SharedRows", "_Messages"]),
        ("abab", ["SharedRows", "_Messages"]),
        ("abcd", ["SharedRows", "_Messages"]),
    ],
)
def test_rows_arrive_whatever_host_a_rank_is_on(four_ranks, hosts, routes):
    for piece_bytes, shape, dtype in (
        (2**28, (3,), torch.float32),
        (1, (2, 2), torch.complex128),
        (60, (3,), torch.float32),
        (2**28, (), torch.bfloat16),
    ):
        found = four_ranks.run(_run_on_hosts, tuple(hosts), piece_bytes, shape, dtype)
        assert found == [(True, True, routes)] * 4, (piece_bytes, shape, dtype)


def _run_ahead(ranks):
    """The first rank hands over rows of the next step before the second has read the last ones."""
    store, other = _get_default_store(), 1 - ranks.rank
    sent = [torch.arange(2 * (rank == other)) for rank in range(2)]
    shared = SharedRows(ranks, sent, [len(rows) for rows in sent], 2, torch.zeros(0, 3))
    halo, key = torch.zeros(2, 3), f"ahead-{os.getppid()}"
    wait = shared.start(torch.full((2, 3), 1.0), halo)
    if ranks.rank == 0:
        wait()
        wait = shared.start(torch.full((2, 3), 2.0), halo)
        store.set(key, "")
    else:
        store.wait([key])
        wait()
        first = halo.clone()
        wait = shared.start(torch.full((2, 3), 2.0), halo)
    wait()
    store.delete_key(key) if ranks.rank == 0 else None
    return halo.unique().tolist() if ranks.rank == 0 else first.unique().tolist()


def test_a_rank_that_is_ahead_does_not_overwrite_what_is_read(two_ranks):
    assert two_ranks.run(_run_ahead) == [[2.0], [1.0]]


def _refuse(ranks, function, on):
    """Routes and results where a system call fails on one rank, and what is reported."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("sheafprop")
    logger.addHandler(handler)
    patch = contextlib.nullcontext()
    if ranks.rank == on:
        change = {"return_value": "/memfd:another"} if function == "readlink" else {}
        change = change or {"side_effect": OSError(28, "No space left on device")}
        patch = mock.patch(f"os.{function}", **change)
    try:
        exchange = _exchange(ranks)
        with patch:
            equal = _run(ranks, exchange, 3)
        routes = _routes(exchange)
        # It is said once: later exchanges do not try again.
        equal += _run(ranks, exchange, 2, (7,))
        assert _routes(exchange) == ["_Messages"]
    finally:
        logger.removeHandler(handler)
        ranks.shares_memory = True
    return all(equal), routes, said


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("memfd_create", "No space left"),
        ("posix_fallocate", "No space left"),
        ("open", "No space left"),
        ("readlink", "is another file"),
    ],
)
def test_memory_that_cannot_be_shared_is_reported_and_done_without(four_ranks, function, reason):
    found = four_ranks.run(_refuse, function, 2)
    assert [(equal, routes) for equal, routes, _ in found] == [
        (True, ["SharedRows", "_Messages"])
    ] * 4
    [line] = found[0][2]
    assert "by its network interface" in line
    assert reason in line
    assert all(said == [] for _, _, said in found[1:])


def _left_behind(ranks):
    def maps():
        return Path("/proc/self/maps").read_text().count("memfd:sheafprop")

    files = len(os.listdir("/proc/self/fd"))
    before = maps()
    exchange = _exchange(ranks)
    _run(ranks, exchange, 2)
    made = maps() - before
    # Rows of another width take the place of these.
    _run(ranks, exchange, 2, (7,))
    again = maps() - before
    named = [path for path in Path("/dev/shm").iterdir() if "sheafprop" in path.name]
    del exchange
    return made, again, named, maps() - before, len(os.listdir("/proc/self/fd")) - files


def test_memory_has_no_name_and_is_given_back(two_ranks):
    assert two_ranks.run(_left_behind) == [(2, 2, [], 0, 0)] * 2


def _without(ranks):
    ranks.shares_memory = False
    try:
        exchange = _exchange(ranks)
        return all(_run(ranks, exchange, 2)), _routes(exchange)
    finally:
        ranks.shares_memory = True


def test_rows_go_by_messages_alone_if_asked(four_ranks):
    assert four_ranks.run(_without) == [(True, ["_Messages"])] * 4
