"""Finds which rank ended or stalls, once a collective has failed on this one."""

import json
import os
import re
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from sheafprop.errors import SheafpropError

#: Seconds that other ranks are given to notice a loss and to say so.
PATIENCE = 2.0
#: How torch and gloo report a rank or a rendezvous that does not answer.
_LOSS = re.compile(
    r"gloo|nccl|connection|broken pipe|socket|timed? ?out|timeout|store|peer", re.IGNORECASE
)


class RankError(SheafpropError, RuntimeError):
    """A rank that cannot go on, or that has lost another one.

    Args:
        message (str): What happened, where, and what to do.
        silent (bool): Whether another rank prints the same message already.
    """

    #: What a command exits with.
    exit_code = 3

    def __init__(self, message: str, *, silent: bool = False):
        super().__init__(message)
        self.silent = silent


@dataclass(frozen=True)
class Member:
    """One rank: the host and the number of its process."""

    host: str
    pid: int


def is_loss(error: BaseException) -> bool:
    """Whether an error of a collective is a rank that does not answer, not a wrong argument."""
    return isinstance(error, RuntimeError) and bool(_LOSS.search(str(error)))


def is_timeout(error: BaseException) -> bool:
    """Whether it is a rank that has not answered for the whole timeout."""
    return bool(re.search(r"timed? ?out|timeout", str(error), re.IGNORECASE))


def describe_error(error: BaseException) -> str:
    """An error in one line, memory with its remedy."""
    text = " ".join(str(error).split()) or type(error).__name__
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if memory or (isinstance(error, RuntimeError) and "allocate memory" in text):
        return (
            f"out of memory: {text}; take fewer processes a host, more hosts, or smaller batches "
            "or blocks"
        )
    known = isinstance(error, SheafpropError | ValueError | OSError)
    return text if known else f"{type(error).__name__}: {text}"


class RollCall:
    """What the ranks of a group write into its store when they leave it early.

    A rank that ends by an error of its own leaves its reason, one that has lost another rank an
    empty one. A rank that left nothing was killed where its process is gone (on this host), and
    else stalls, or ended on another host.

    Args:
        store (torch.distributed.Store): The store of the group.
        rank (int): This rank.
        members (list of Member): All ranks.
    """

    def __init__(self, store: Any, rank: int, members: list[Member]):
        self.store, self.rank, self.members = store, rank, members
        own = members[rank].host
        # Containers of one host name may not see each other's processes.
        self._seen = {r for r, m in enumerate(members) if m.host == own and _runs(m.pid)}

    def leave(self, reason: str) -> None:
        """Leaves the reason why this rank ends, the first one alone."""
        try:
            self.store.set_timeout(timedelta(seconds=PATIENCE))
            if not self.store.check([self._key(self.rank)]):
                self.store.set(self._key(self.rank), json.dumps(reason))
        except Exception:  # the store is lost as well, and what led here is reported
            return

    def describe_loss(self, what: str, timeout: float | None, patience: float = PATIENCE) -> str:
        """Which ranks were lost, the likely cause and the remedy.

        Args:
            what (str): What this rank was doing.
            timeout (float, optional): The seconds waited in vain; None where a connection broke.
            patience (float): Seconds to wait for other ranks' reasons.
        """
        self.leave("")
        others = [rank for rank in range(len(self.members)) if rank != self.rank]
        end = time.monotonic() + patience
        while True:
            try:
                left = {rank: found for rank in others if (found := self._reason(rank)) is not None}
            except Exception:
                return (
                    f"the store of the process group no longer answers ({what}), so the launcher "
                    "or the rank that holds it ended: see torchrun's report on its host"
                )
            if own := [rank for rank in others if left.get(rank)]:
                return f"{self._name(own)} ended ({left[own[0]]})"
            near = (rank for rank in others if rank in self._seen and rank not in left)
            gone = [rank for rank in near if not _runs(self.members[rank].pid)]
            if gone:
                return (
                    f"{self._name(gone)} ended without a message ({what}), most likely killed for "
                    "memory: torchrun's report has the exit code; take fewer processes a host, or "
                    "more hosts"
                )
            silent = [rank for rank in others if rank not in left]
            if not silent or time.monotonic() > end:
                break
            time.sleep(0.02)
        if not silent:
            return f"a connection between ranks broke ({what}): look at the network of the hosts"
        if timeout is not None:
            return (
                f"{self._name(silent)} did not answer within {timeout:g} s ({what}): the process "
                "stalls, or computes for longer; look at its host, or give a larger --timeout"
            )
        return (
            f"{self._name(silent)} ended, or its host is out of reach ({what}): torchrun's report "
            "on that host has the exit code"
        )

    def _reason(self, rank: int) -> str | None:
        key = self._key(rank)
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def _key(self, rank: int) -> str:
        return f"sheafprop/left/{rank}"

    def _name(self, ranks: list[int]) -> str:
        word = "rank" if len(ranks) == 1 else "ranks"
        numbers = ", ".join(map(str, ranks))
        hosts = ", ".join(dict.fromkeys(self.members[rank].host for rank in ranks))
        return f"{word} {numbers} of {len(self.members)} ({hosts})"


def _runs(pid: int) -> bool:
    """Whether a process of this host runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return state.rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
