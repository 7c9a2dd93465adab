import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from sheafprop.distributed import RankError, Ranks
from sheafprop.files import write_json

T = TypeVar("T")
# Seconds between two looks at whether the others are done.
_PATIENCE = 0.05


def run_unhurried(ranks: Ranks, folder: Path, work: Callable[[], T] | None) -> list[T | None]:
    """Runs what may take longer than the timeout on some ranks, while the others wait.

    They look for files and not for messages, which would have to come in time. Where a rank is
    killed, torchrun ends the others.

    Args:
        ranks (Ranks): The processes.
        folder (Path): A folder that all of them see.
        work (callable, optional): What this rank does, without collectives; None for nothing.

    Returns:
        list: What the work returned, by rank; None without work.

    Raises:
        Exception: What the work raises here.
        RankError: If it raises on another rank.
    """
    token = ranks.gather(uuid4().hex)[0]
    marks = [folder / f"done-{token}-{rank}.json" for rank in range(ranks.size)]
    error, result = None, None
    if work is not None:
        try:
            result = work()
        except RankError:
            raise  # a rank is lost, and its mark will never come
        except Exception as found:
            error = found
    if ranks.size > 1:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(marks[ranks.rank], {})
        while not all(mark.exists() for mark in marks):
            time.sleep(_PATIENCE)

    def answer() -> T | None:
        if error is not None:
            raise error
        return result

    results = ranks.gather(ranks.run_together(answer))
    # All have seen them; the first rank may remove the folder next.
    if ranks.is_first and ranks.size > 1:
        for mark in marks:
            mark.unlink()
    return results
