"""Training with an entity table that is sharded among processes by rows."""

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from sheafprop.distributed import Ranks, ShardedTable, current_ranks
from sheafprop.distributed.sharded_table import read_rows
from sheafprop.kge import KGEModel
from sheafprop.training.checkpoint_state import KEY

#: The name of the entity table among the parameters of the module.
TABLE = "kge.node_emb.weight"
#: The key of the folder and the widths of the rows in the state of a checkpoint.
ROWS = "rows"
_FOLDERS = "rows-*"


class ShardedTableStrategy(DDPStrategy):
    """Lightning's DDP strategy with an entity table that is sharded by rows.

    A checkpoint is a file and a folder next to it with the rows of the table and of its optimizer
    state, which all processes write (:mod:`torch.distributed.checkpoint`). The file names the
    folder and replaces the old file atomically. Folders that no file names are then removed.

    Args:
        **kwargs: Arguments of :class:`lightning.pytorch.strategies.DDPStrategy`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves the rows of all processes, then the file of the first process."""
        module: Any = self.lightning_module
        table = module.model.node_emb
        if not isinstance(table, ShardedTable):
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        filepath = Path(self.broadcast(str(filepath)))
        folder = self.broadcast(f"rows-{filepath.stem}-{secrets.token_hex(4)}")
        rows = _take_rows(checkpoint, table, self.optimizers)
        filepath.parent.mkdir(parents=True, exist_ok=True)
        table.write(filepath.parent / folder, rows)
        widths = {name: list(values.shape[1:]) for name, values in rows.items()}
        checkpoint[KEY][ROWS] = {"folder": folder, "widths": widths}
        super().save_checkpoint(checkpoint, filepath, storage_options)
        self.barrier()
        if self.is_global_zero:
            remove_unnamed_rows(filepath.parent)


def table_ranks(table: str, trainer: Trainer) -> Ranks | None:
    """Returns the processes that share the entity table, None if each process has all of it.

    Args:
        table (str): The option, ``"whole"`` or ``"sharded"``.
        trainer (Trainer): The trainer.

    Raises:
        ValueError: If the strategy does not support a sharded table.
    """
    if table == "whole":
        return None
    if trainer.state.fn != "fit" or isinstance(trainer.strategy, SingleDeviceStrategy):
        return None
    if not isinstance(trainer.strategy, ShardedTableStrategy):
        raise ValueError(
            "'table' can be 'sharded' only with the strategy sheafprop.training."
            f"ShardedTableStrategy, as under torchrun (got {type(trainer.strategy).__name__})"
        )
    return current_ranks()


def share_table(model: KGEModel, ranks: Ranks) -> None:
    """Replaces the table of a model on the meta device by the shard of this rank.

    Raises:
        ValueError: If the model has no other parameters.
    """
    if sum(1 for _ in model.parameters()) == 1:
        raise ValueError(f"'table' cannot be 'sharded': {type(model).__name__} has nothing else")
    whole = model.node_emb
    model.node_emb = ShardedTable(  # type: ignore[assignment]
        whole.num_embeddings, whole.embedding_dim, ranks, device=whole.weight.device
    )


def _take_rows(
    checkpoint: dict[str, Any], table: ShardedTable, optimizers: list[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Removes the rows of the table and of its optimizer state from a checkpoint."""
    rows = {TABLE: checkpoint["state_dict"].pop(TABLE)}
    for number, optimizer in enumerate(optimizers):
        states = checkpoint["optimizer_states"]
        if number >= len(states):
            break  # a checkpoint of weights alone
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        place = next(i for i, p in enumerate(parameters) if p is table.weight)
        everything = states[number]["state"]
        state = everything.get(place, {})
        # The checkpoint refers to the dictionaries of the optimizer itself.
        names = [name for name, value in state.items() if _is_rows(value, len(table.weight))]
        rows |= {f"{number}/{place}/{name}": state[name] for name in names}
        left = {name: value for name, value in state.items() if name not in names}
        states[number] = states[number] | {"state": everything | {place: left}}
    return rows


def _is_rows(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == count


def restore_rows(checkpoint: dict[str, Any], table: torch.nn.Module, folder: Path) -> None:
    """Restores rows in a checkpoint: the shard of this rank, or all rows of a whole table.

    Args:
        checkpoint (dict): A checkpoint of any number of processes, with or without a sharded table.
        table (torch.nn.Module): The table that will load the rows.
        folder (Path): The folder of the checkpoint file.

    Raises:
        StorageError: If the rows cannot be read.
    """
    weight: Any = table.weight
    stored = checkpoint.get(KEY, {}).pop(ROWS, None)
    if stored is None:
        if isinstance(table, ShardedTable):
            _cut_rows(checkpoint, table)
        return
    rows = {name: weight.new_empty(len(weight), *w) for name, w in stored["widths"].items()}
    rows = {name: values.detach() for name, values in rows.items()}
    if isinstance(table, ShardedTable):
        table.read(folder / stored["folder"], rows)
    else:
        read_rows(folder / stored["folder"], rows)
    _put_rows(checkpoint, rows)


def _put_rows(checkpoint: dict[str, Any], rows: Mapping[str, Tensor]) -> None:
    for name, values in rows.items():
        if name == TABLE:
            checkpoint["state_dict"][TABLE] = values
            continue
        number, place, key = name.split("/")
        state = checkpoint["optimizer_states"][int(number)]["state"]
        state.setdefault(int(place), {})[key] = values


def _cut_rows(checkpoint: dict[str, Any], table: ShardedTable) -> None:
    """Selects the rows of this rank from a checkpoint with a whole table."""
    own = slice(table.first_row, table.first_row + len(table.weight))
    whole = checkpoint["state_dict"][TABLE]
    checkpoint["state_dict"][TABLE] = whole[own].clone()
    for state in checkpoint.get("optimizer_states", []):
        values = state["state"].get(0, {})  # a model's table is its first parameter
        for name in [n for n, value in values.items() if _is_rows(value, len(whole))]:
            values[name] = values[name][own].clone()


def remove_unnamed_rows(folder: Path) -> None:
    """Removes folders of rows that no checkpoint in the folder names."""
    folders = list(folder.glob(_FOLDERS))
    if not folders:
        return
    named = set()
    for file in folder.glob("*.ckpt"):
        checkpoint = torch.load(file, weights_only=True, map_location="cpu", mmap=True)
        named.add(checkpoint.get(KEY, {}).get(ROWS, {}).get("folder"))
    for rows in folders:
        if rows.name not in named:
            shutil.rmtree(rows, ignore_errors=True)


def temporary_table(folder: Path, ranks: Ranks) -> Path:
    """Returns an unused name for a file of the whole table, the same on all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(ranks.gather(str(folder / f".sheafprop-{secrets.token_hex(8)}.tmp"))[0])
