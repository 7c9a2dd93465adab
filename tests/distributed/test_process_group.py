"""Joining and leaving: what torchrun gives, one process, faults of interface and port."""

import re
import socket

import pytest
import torch

from sheafprop.distributed import RankError, process_group
from tests.distributed.rank_pool import environment


@pytest.fixture
def alone(monkeypatch):
    for name in environment(0, 1, 0):
        monkeypatch.delenv(name, raising=False)


def test_without_torchrun_there_is_one_rank(alone):
    with process_group() as ranks:
        assert (ranks.rank, ranks.size, ranks.is_first) == (0, 1, True)
        x = torch.arange(6.0).view(3, 2)
        assert ranks.all_reduce(x.clone()).equal(x)
        assert ranks.exchange_counts([3]) == ([3], 3)
        out = ranks.exchange(torch.empty(3, 2), x, received=[3], sent=[3], most=3)
        assert out.equal(x)
        assert ranks.bytes_sent == 0
        assert ranks.gather("own") == ["own"]
        assert ranks.run_together(lambda: 3) == 3
        ranks.compare("the facts", x)
        ranks.barrier()
    assert not torch.distributed.is_initialized()


def _describe(ranks):
    return ranks.rank, ranks.size, len(ranks.hosts), repr(ranks), str(ranks.device)


def test_ranks_of_torchrun_join(four_ranks):
    found = four_ranks.run(_describe)
    host = socket.gethostname()
    assert found == [
        (rank, 4, 4, f"Ranks(rank {rank} of 4 ({host}), cpu)", "cpu") for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": None}, "RANK not set"),
        ({"RANK": "two"}, "RANK must be a number"),
        ({"RANK": "7"}, "RANK must be below WORLD_SIZE 2"),
        ({"MASTER_PORT": None, "LOCAL_RANK": None}, "LOCAL_RANK, MASTER_PORT not set"),
    ],
)
def test_half_an_environment_is_refused(monkeypatch, changes, message):
    for name, value in environment(0, 2, 29500).items():
        monkeypatch.setenv(name, value)
    for name, value in changes.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=message), process_group():
        pass


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_positive(alone, timeout):
    with pytest.raises(ValueError, match="timeout"), process_group(timeout=timeout):
        pass


def test_a_port_without_a_launcher_is_named_in_one_line(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for name, value in environment(1, 2, port).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankError) as found, process_group(timeout=0.5):
        pass
    message = str(found.value)
    assert f"127.0.0.1:{port}" in message
    assert message.startswith(f"rank 1 of 2 ({socket.gethostname()})")
    assert "--rdzv-endpoint" in message
    assert "\n" not in message


def test_a_taken_port_is_named(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in environment(0, 2, port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
        with pytest.raises(RankError) as found, process_group(timeout=5):
            pass
    assert re.search(r"taken by another program.*--master-port", str(found.value))


def test_an_unknown_interface_is_named_with_those_there_are(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in environment(0, 2, store.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    with pytest.raises(RankError) as found, process_group(timeout=5):
        pass
    assert re.search(r"no network interface 'eth77'.*give one of .*\blo", str(found.value))


def test_a_host_that_others_cannot_reach_is_told_to_name_its_interface(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in environment(0, 2, store.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(RankError) as found, process_group(timeout=5):
        pass
    assert re.search(r"leads to 127\.0\.1\.1.*GLOO_SOCKET_IFNAME", str(found.value))


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a host without GPU")
def test_a_rank_without_a_gpu_is_told(alone):
    with pytest.raises(RankError) as found, process_group(device="cuda"):
        pass
    assert re.search(r"has no GPU.*--device cpu", str(found.value))
