"""Processes that join one group and then run one case after another.

They are forked from a process that has imported everything, so they cost next to nothing. The
store of the group is held by the tests' process, as ``torchrun``'s agent holds it.
"""

import atexit
import os
import pickle
import traceback
from multiprocessing.connection import wait

import torch
from torch import distributed as dist

from sheafprop.distributed import process_group
from tests import forked

TIMEOUT = 60.0
_POOLS = {}


def environment(rank, size, port):
    """What torchrun gives a process."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def start(function, size, *arguments):
    """Starts ``function(pipe, *arguments)`` in ``size`` processes as torchrun would."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = forked.context()
    started = []
    for rank in range(size):
        here, there = context.Pipe()
        words = (function, there, environment(rank, size, store.port), *arguments)
        process = context.Process(target=_run, args=words, daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    return store, started


def _run(function, pipe, variables, *arguments):
    os.environ.update(variables)
    torch.set_num_threads(1)
    function(pipe, *arguments)


def _serve(pipe):
    with process_group(timeout=TIMEOUT) as ranks:
        while (job := pickle.loads(pipe.recv_bytes())) is not None:
            function, arguments = job
            try:
                answer = True, function(ranks, *arguments)
            except Exception:
                answer = False, traceback.format_exc()
            pipe.send_bytes(pickle.dumps(answer))


class RankPool:
    """Some ranks that wait for cases to run."""

    def __init__(self, size):
        self.size = size
        self.store, self.started = start(_serve, size)

    def run(self, function, *arguments):
        """``function(ranks, *arguments)`` on every rank: the results, by rank."""
        job = pickle.dumps((function, arguments))
        for _, pipe in self.started:
            pipe.send_bytes(job)
        answers = {}
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self.started)}
        while len(answers) < self.size:
            ready = wait([pipe for pipe, rank in pipes.items() if rank not in answers], TIMEOUT)
            failed = None if ready else "no answer"
            for pipe in ready:
                try:
                    done, answers[pipes[pipe]] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    done, answers[pipes[pipe]] = False, "the process ended"
                if not done:
                    failed = f"rank {pipes[pipe]} of {self.size}: {answers[pipes[pipe]]}"
            if failed:
                # The others may wait for the one that failed.
                self.close(kill=True)
                raise AssertionError(failed)
        return [answers[rank] for rank in range(self.size)]

    def close(self, kill=False):
        """Ends the processes."""
        _POOLS.pop(self.size, None)
        for process, pipe in self.started:
            if kill:
                process.kill()
            else:
                pipe.send_bytes(pickle.dumps(None))
        for process, _ in self.started:
            process.join(TIMEOUT)


def pool(size):
    """The pool of so many ranks; made at the first use, and anew after a failure."""
    if size not in _POOLS:
        _POOLS[size] = RankPool(size)
    return _POOLS[size]


@atexit.register
def _close():
    for made in list(_POOLS.values()):
        made.close()
