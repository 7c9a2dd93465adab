"""Joins the processes that ``torchrun`` started, and leaves them again."""

import itertools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from sheafprop.checks import check_choice
from sheafprop.distributed.ranks import Ranks
from sheafprop.distributed.roll_call import Member, RankError, RollCall, describe_error

#: Seconds after which a rank that does not answer is given up.
TIMEOUT = 300.0

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_INTERFACE = "GLOO_SOCKET_IFNAME"
#: Seconds that a process has to say why it ends, once it does.
_GRACE = 5.0
_JOINED = itertools.count()
_CURRENT: list[Ranks] = []


@contextmanager
def process_group(
    *, device: str = "cpu", timeout: float = TIMEOUT, wait: bool = True
) -> Iterator[Ranks]:
    """Joins the processes of ``torchrun``, and leaves them at the end of the block.

    Without ``torchrun`` there is one rank, and nothing is exchanged. Tensors on the CPU are
    exchanged by gloo, those on GPUs by NCCL (untried on hardware). Processes of one host talk over
    its loopback interface.

    A block that ends by an error leaves its reason for the other ranks, which end as well: the next
    collective of each raises a :class:`RankError` that names the rank. So does the signal
    ``SIGTERM``, by which ``torchrun`` ends the others.

    Args:
        device (str): ``"cpu"``, or ``"cuda"`` for one GPU a process.
        timeout (float): Seconds after which a rank that does not answer is given up.
        wait (bool): Whether ranks wait at the end for each other, so that the block ends without
            error only if those of all ranks do.

    Yields:
        Ranks: This rank and its collectives.

    Raises:
        ValueError: If an argument or a variable of ``torchrun`` is out of its range.
        RankError: If the group cannot be joined, with the likely cause and the remedy; in the
            block, if another rank ended or stalls.
    """
    check_choice("device", device, ("cpu", "cuda"))
    if not timeout > 0:
        raise ValueError(f"'timeout' must be a number of seconds above 0 (got {timeout})")
    rank, size, local = _read_environment()
    host = socket.gethostname()
    place = torch.device("cpu") if device == "cpu" else _choose_card(rank, size, local, host)
    if size == 1:
        yield Ranks(0, 1, place, [host], timeout, None)
        return
    joined = dist.is_initialized()
    store = (
        dist.distributed_c10d._get_default_store()
        if joined
        else _join(rank, size, host, place, timeout)
    )
    ranks: Ranks | None = None
    try:
        ranks = _meet(rank, size, host, place, timeout, store)
        with _ends_on_signal(ranks):
            _CURRENT.append(ranks)
            try:
                yield ranks
            finally:
                _CURRENT.remove(ranks)
            if wait:
                ranks.barrier()
    except BaseException as error:
        if ranks is None or ranks._roll_call is None:
            raise
        ranks._roll_call.leave("" if isinstance(error, RankError) else describe_error(error))
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise RankError(f"{ranks.name(rank)}: {describe_error(error)}") from error
        raise
    finally:
        if not joined and dist.is_initialized():
            dist.destroy_process_group()


def choose_device() -> str:
    """``"cuda"`` where each process of this host has a GPU, else ``"cpu"``."""
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= count else "cpu"


def current_ranks() -> Ranks:
    """The ranks of the innermost :func:`process_group`, or of a group that something else joined.

    The second is for code that Lightning has started several times. One rank where there is none.
    """
    if _CURRENT:
        return _CURRENT[-1]
    host = socket.gethostname()
    if not dist.is_initialized():
        return Ranks(0, 1, torch.device("cpu"), [host], TIMEOUT, None)
    store = dist.distributed_c10d._get_default_store()
    device = "cpu" if dist.get_backend() == "gloo" else f"cuda:{torch.cuda.current_device()}"
    rank, size = dist.get_rank(), dist.get_world_size()
    return _meet(rank, size, host, torch.device(device), TIMEOUT, store)


def _read_environment() -> tuple[int, int, int]:
    """This rank, their number, and the number of this process on its host."""
    if "WORLD_SIZE" not in os.environ and "RANK" not in os.environ:
        return 0, 1, 0
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} not set, while RANK or WORLD_SIZE is: start the processes by "
            "torchrun, or unset these for one process"
        )
    values = []
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        if not re.fullmatch(r"\d+", os.environ[name]):
            raise ValueError(f"{name} must be a number (got {os.environ[name]!r}): see torchrun")
        values.append(int(os.environ[name]))
    rank, size, local = values
    if rank >= size:
        raise ValueError(f"RANK must be below WORLD_SIZE {size} (got {rank}): see torchrun")
    return rank, size, local


def _choose_card(rank: int, size: int, local: int, host: str) -> torch.device:
    cards = torch.cuda.device_count()
    if local >= cards:
        raise RankError(
            f"rank {rank} of {size} ({host}) has no GPU, as {cards} are visible: give torchrun "
            f"--nproc-per-node {max(1, cards)} or fewer, or take --device cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _join(rank: int, size: int, host: str, device: torch.device, timeout: float) -> Any:
    """Joins the group and returns its store."""
    wait = timedelta(seconds=timeout)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    here = f"rank {rank} of {size} ({host})"
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", rank, size, timeout=wait)))
        store.set_timeout(wait)
    except (RuntimeError, ValueError, OSError) as error:
        raise RankError(f"{here}: {_explain_rendezvous(error, address)}") from error
    chosen = _choose_interface(size, here)
    before = os.environ.get(_INTERFACE)
    if chosen:
        os.environ[_INTERFACE] = chosen
    options: dict[str, Any] = {}
    backend = "gloo"
    if device.type == "cuda":
        backend, options = "cpu:gloo,cuda:nccl", {"device_id": device}
    try:
        # Processes may join, leave and join again by one store, and torchrun may restart them.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"sheafprop/{attempt}/{next(_JOINED)}", store)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=wait, **options
        )
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"{here} cannot join the others: {_first_line(error)}. Interfaces of this host: "
            f"{', '.join(_interfaces())}; name the one that reaches the other hosts by "
            f"{_INTERFACE} (and NCCL_SOCKET_IFNAME), and see that no firewall is between them"
        ) from error
    finally:
        if chosen and before is None:
            del os.environ[_INTERFACE]
    return store


def _choose_interface(size: int, here: str) -> str | None:
    """The loopback interface where all processes are on one host; else the user's is checked."""
    names, given = _interfaces(), os.environ.get(_INTERFACE)
    if given:
        unknown = [name for name in given.split(",") if name not in names]
        if unknown:
            raise RankError(
                f"{here}: there is no network interface '{unknown[0]}', which {_INTERFACE} names: "
                f"give one of {', '.join(names)}"
            )
        return None
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
        return next((name for name in ("lo", "lo0") if name in names), None)
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "no address"
    if address.startswith("127.") or address == "no address":
        raise RankError(
            f"{here}: the name of this host leads to {address}, where other hosts do not reach it: "
            f"name its network interface by {_INTERFACE}, one of {', '.join(names)}"
        )
    return None


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _explain_rendezvous(error: Exception, address: str) -> str:
    text = str(error)
    if "EADDRINUSE" in text or "in use" in text:
        return (
            f"the port of {address} is taken by another program: give torchrun another "
            "--master-port, or --standalone on one host"
        )
    if re.search(r"not known|resolve|resolution|gai", text):
        return f"{address} is not a host that can be found: see torchrun's --rdzv-endpoint"
    return (
        f"no answer from {address} ({_first_line(error)}): see that torchrun runs on every host "
        "with the same --rdzv-endpoint and --nnodes, and that no firewall closes the port"
    )


def _first_line(error: Exception) -> str:
    """The first line of torch's message without its place in the source."""
    return re.sub(r"^\[[^\]]*\]\s*", "", (str(error).splitlines() or [""])[0])[:200]


def _meet(
    rank: int, size: int, host: str, device: torch.device, timeout: float, store: Any
) -> Ranks:
    """The ranks with their hosts and processes, once all are there."""
    own = Member(host, os.getpid())
    alone = Ranks(rank, size, device, [host] * size, timeout, RollCall(store, rank, [own] * size))
    members = alone.gather(own)
    roll_call = RollCall(store, rank, members)
    return Ranks(rank, size, device, [member.host for member in members], timeout, roll_call)


@contextmanager
def _ends_on_signal(ranks: Ranks) -> Iterator[None]:
    """Turns SIGTERM, by which torchrun ends the others, into an error that names the lost rank."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert ranks._roll_call is not None
        where = f"{ranks.name(ranks.rank)} was told to end"
        raise RankError(ranks._roll_call.describe_loss(where, None, patience=0.5))

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, _end_later())
        raise
    signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _end_later() -> Callable[[int, Any], None]:
    """A handler that gives a process some seconds to say why it ends."""
    last = time.monotonic() + _GRACE

    def end(number: int, frame: Any) -> None:
        if time.monotonic() > last:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    return end
