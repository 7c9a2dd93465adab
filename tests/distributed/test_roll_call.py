"""A rank that ends, is killed, stalls or raises: the others name it and end."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import pytest
import torch

from sheafprop.distributed import RankError, process_group
from sheafprop.distributed.halo_exchange import HaloExchange
from sheafprop.distributed.roll_call import _runs, describe_error, is_loss
from sheafprop.distributed.shared_rows import SharedRows
from sheafprop.errors import DataError
from tests.distributed.rank_pool import start


def _lose(pipe, fault, lost, timeout, by_memory):
    """Runs until one rank is lost; says what this one was told."""
    try:
        with process_group(timeout=timeout) as ranks:
            go_on = lambda: ranks.exchange_counts([1] * ranks.size)  # noqa: E731
            if by_memory:
                sent = [torch.arange(rank != ranks.rank) for rank in range(ranks.size)]
                exchange = HaloExchange(ranks, sent, [len(rows) for rows in sent], 1)
                rows = torch.zeros(ranks.size, 4)
                exchange.run(rows)
                assert [type(route) for route in next(iter(exchange._routes.values()))] == [
                    SharedRows
                ]
                go_on = lambda: exchange.run(rows)  # noqa: E731
            ranks.barrier()
            pipe.send(os.getpid())
            if ranks.rank == lost:
                if fault == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault == "stalled":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if fault == "raised":
                    raise DataError("facts.tsv: line 3 has two fields")
                if fault == "memory":
                    raise torch.OutOfMemoryError("Tried to allocate 31.2 GiB")
            if fault == "told" and ranks.rank == 0:
                time.sleep(60)
            while True:
                go_on()
    except (DataError, RankError) as error:
        pipe.send((type(error).__name__, str(error)))
        raise SystemExit(getattr(error, "exit_code", 1)) from None


def _run(fault, *, size=4, lost=2, timeout=60.0, by_memory=False):
    _store, started = start(_lose, size, fault, lost, timeout, by_memory)
    pids = [pipe.recv() for _, pipe in started]
    if fault == "told":
        os.kill(pids[lost], signal.SIGKILL)
        started[lost][0].join(10)
        os.kill(pids[0], signal.SIGTERM)
    said = {}
    for rank, (process, pipe) in enumerate(started):
        if rank == lost and fault in ("stalled",):
            continue
        if pipe.poll(20):
            with contextlib.suppress(EOFError):
                said[rank] = pipe.recv()
        process.join(10)
    if fault == "stalled":
        started[lost][0].kill()
        started[lost][0].join(10)
    return said, [process.exitcode for process, _ in started]


@pytest.mark.parametrize("by_memory", [False, True])
def test_survivors_name_a_killed_rank_and_end(by_memory):
    said, codes = _run("killed", by_memory=by_memory)
    assert codes == [3, 3, -signal.SIGKILL, 3]
    for rank in (0, 1, 3):
        kind, message = said[rank]
        assert kind == "RankError"
        assert message.startswith(f"rank 2 of 4 ({socket.gethostname()}) ended without a message")
        assert f"rank {rank} of 4" in message
        assert "memory" in message
        assert "\n" not in message


@pytest.mark.parametrize("by_memory", [False, True])
def test_survivors_name_a_stalled_rank_within_the_timeout(by_memory):
    said, codes = _run("stalled", size=3, lost=1, timeout=1.0, by_memory=by_memory)
    assert codes == [3, -signal.SIGKILL, 3]
    messages = [said[rank][1] for rank in (0, 2)]
    assert all(message.startswith("rank 1 of 3 (") for message in messages)
    assert any("did not answer within 1 s" in message for message in messages)
    assert any("--timeout" in message for message in messages)


@pytest.mark.parametrize(
    ("fault", "reason", "code"),
    [
        ("raised", "facts.tsv: line 3 has two fields", 1),
        ("memory", "out of memory: Tried to allocate 31.2 GiB; take fewer processes", 3),
    ],
)
def test_survivors_give_the_reason_of_a_rank_that_raised(fault, reason, code):
    said, codes = _run(fault, size=3, lost=0)
    assert codes == [code, 3, 3]
    assert reason in said[0][1]
    for rank in (1, 2):
        assert said[rank][1].startswith("rank 0 of 3 (")
        assert f"ended ({reason}" in said[rank][1]


def test_a_rank_that_torchrun_ends_names_the_lost_one():
    # It waits for no other rank when the signal comes.
    said, codes = _run("told", size=2, lost=1)
    assert codes == [3, -signal.SIGKILL]
    assert said[0][1].startswith("rank 1 of 2 (")
    assert "rank 0 of 2" in said[0][1]
    assert "was told to end" in said[0][1]


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (RuntimeError("Timed out waiting 60000ms for recv operation"), True),
        (RuntimeError("Broken pipe"), True),
        (RuntimeError("Split sizes doesn't match total dim 0 size"), False),
        (ValueError("store"), False),
    ],
)
def test_wrong_arguments_are_no_lost_rank(error, loss):
    assert is_loss(error) is loss


def test_errors_are_one_line():
    assert describe_error(ValueError("two\n lines")) == "two lines"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(RuntimeError("can't allocate memory: 8 bytes")).startswith(
        "out of memory"
    )
    assert describe_error(MemoryError()).startswith("out of memory: MemoryError")


def test_a_process_that_nothing_has_waited_for_has_ended():
    assert _runs(os.getpid())
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not _runs(process.pid)
    process.wait()
    assert not _runs(process.pid)
