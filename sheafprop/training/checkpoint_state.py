"""The state of sheafprop in checkpoints, and checks of options and data against it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Trainer

from sheafprop.data import Vocabulary
from sheafprop.data.inductive_data import InductiveData, renumber
from sheafprop.errors import DataError
from sheafprop.files import write_bytes
from sheafprop.inductive.episode_model import EpisodeSettings
from sheafprop.inductive.propagation_search import Selection
from sheafprop.inductive.proximity_search import ProximitySearch
from sheafprop.kge import KGEModel
from sheafprop.training.inductive_data_module import InductiveDataModule

#: The key of the state, a dictionary of plain values.
KEY = "sheafprop"
#: Options that are fixed by the weights of a checkpoint, and further ones fixed when resuming.
_OF_WEIGHTS = ("kge", "hidden_channels", "kge_args")
_OF_TRAINING = ("optimizer", "sparse", "seed")
#: Placeholder for an optimizer or a schedule given as a callable, which checkpoints do not store.
_INJECTED = "of a class"
#: Options that are fixed by the stored state of such a schedule.
_OF_SCHEDULE = ("lr_schedule", "lr", "weight_decay")
#: Options of propagation and ranking, which may change after training.
_OF_RANKING = ("propagation", "episodes", "proximity")
AFTER_TRAINING = (*_OF_RANKING, "protocols", "reference")


def describe_training(model: KGEModel, data: InductiveDataModule, seconds: float) -> dict[str, Any]:
    """Returns the state stored under :data:`KEY`: sizes, labels, and hashes of the data."""
    train = data.data.train
    return {
        "num_nodes": model.num_nodes,
        "num_relations": model.num_relations,
        "entities": train.entities.labels if train.entities else (),
        "relations": train.relations.labels if train.relations else (),
        "data": data.keys,
        "batches": {"batch_size": data.batch_size, "drop_last": data.drop_last},
        "seconds": seconds,
        "sparse": model.node_emb.sparse,
    }


def vocabularies(checkpoint: dict[str, Any]) -> tuple[Vocabulary, Vocabulary | None]:
    """Returns the entities and relations. Checkpoints of version 0.1.0 store no relations."""
    stored = checkpoint[KEY]
    relations = stored.get("relations")
    return (
        Vocabulary(stored["entities"], kind="entities"),
        None if relations is None else Vocabulary(relations, kind="relations"),
    )


def renumber_like(checkpoint: dict[str, Any], data: InductiveData) -> InductiveData:
    """Renumbers the data with the ids of a checkpoint.

    Raises:
        DataError: If the labels differ from those of the checkpoint.
    """
    if KEY not in checkpoint:
        return data
    entities, relations = vocabularies(checkpoint)
    own = data.train.relations
    assert own is not None
    if relations is None:
        if data.train.entities != entities:
            # If the lines are in another order, the ids of relations may differ too.
            renumber(data, entities, own)  # raises the right error where the labels differ
            raise DataError(
                "the checkpoint of version 0.1.0 stores no relations, and the order of the lines "
                "of the training file has changed: restore it"
            )
        relations = own
    return renumber(data, entities, relations)


def count_epochs(checkpoint: dict[str, Any]) -> int:
    """Returns the number of epochs of the weights of a checkpoint.

    The entry ``epoch`` depends on whether the checkpoint was saved during or after the last epoch,
    so the number of started epochs is used if the checkpoint stores it.
    """
    if "loops" not in checkpoint:
        return int(checkpoint["epoch"]) + 1
    return int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["ready"])


def check_checkpoint(
    settings: Mapping[str, Any],
    checkpoint: dict[str, Any],
    data: InductiveDataModule,
    *,
    resume: bool,
    max_epochs: int | None = None,
    max_steps: int = -1,
) -> None:
    """Checks that options and data fit a checkpoint.

    Args:
        settings (mapping): Hyperparameters of the module that loads the weights.
        checkpoint (dict): The checkpoint.
        data (InductiveDataModule): The data module.
        resume (bool): Whether training is resumed.
        max_epochs (int, optional): Total number of epochs, if training is resumed.
        max_steps (int): Total number of steps, if training is resumed; -1 for no limit.

    Raises:
        DataError: If an option or the data differ from those of the training.
    """
    trained = dict(checkpoint.get("hyper_parameters", settings))
    settings = dict(settings)
    for options in (settings, trained):
        options.setdefault("optimizer", _INJECTED)
        options.setdefault("lr_schedule", _INJECTED)
    changed = [name for name, value in settings.items() if trained.get(name, value) != value]
    fixed = _OF_WEIGHTS + (_OF_TRAINING if resume else ())
    if resume and _INJECTED in (settings["lr_schedule"], trained["lr_schedule"]):
        fixed += _OF_SCHEDULE
    for name in fixed:
        if name in changed:
            raise DataError(
                f"this run was trained with {_option(name)} {trained[name]!r}, and its stored "
                f"state fits no other (got {settings[name]!r}): leave the option out, or start a "
                "new run"
            )
    if not resume:
        return
    stored = checkpoint.get(KEY, {})
    before = stored.get("data", data.keys)
    for name in ("mode", "train", "train_valid", "inference", "valid", "features"):
        if before.get(name) != data.keys.get(name):
            what = "file of then with --data.features"
            if name != "features":
                what = "folder of then with --data.root"
            raise DataError(
                f"the data is not what this run was trained on: '{name}' differs. Give the {what}, "
                "or start a new run"
            )
    for name, value in stored.get("batches", {}).items():
        if getattr(data, name) != value:
            raise DataError(
                f"this run has counted its steps in batches of --data.{name} {value} (got "
                f"{getattr(data, name)}): leave the option out, or start a new run"
            )
    epochs, steps = count_epochs(checkpoint), checkpoint["global_step"]
    if (max_epochs is not None and 0 <= max_epochs < epochs) or 0 <= max_steps < steps:
        raise DataError(
            f"this run has been trained for {epochs} epochs ({steps} steps) already: give a larger "
            f"--trainer.max_epochs or --trainer.max_steps (got {max_epochs} and {max_steps})"
        )
    late = [name for name in changed if name not in AFTER_TRAINING]
    if late and (max_epochs == epochs or max_steps == steps):
        raise DataError(
            f"nothing is left to train with --model.{late[0]}: all {epochs} epochs were run. Give "
            "a larger --trainer.max_epochs"
        )


def check_schedule(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Checks that the options of an injected schedule are unchanged, since its state is restored.

    Args:
        stored (mapping): The section ``model`` of the configuration of a run.
        now (mapping): The current section ``model``.

    Raises:
        DataError: If an option of the schedule, or of an optimizer of a class, differs.
    """
    if not isinstance(now["lr_schedule"], dict):
        return
    for name in ("lr_schedule", "optimizer"):
        classes = [part for part in (stored.get(name), now[name]) if isinstance(part, dict)]
        if len(classes) < 2:
            continue
        before, after = (part.get("init_args") or {} for part in classes)
        for key in before.keys() & after.keys():
            if before[key] != after[key]:
                raise DataError(
                    f"this run was trained with --model.{name}.{key} {before[key]!r}, and the "
                    f"stored state of its schedule fits no other (got {after[key]!r}): leave the "
                    "option out, or start a new run"
                )


def choice_of_old_run(
    folder: Path, checkpoint: dict[str, Any], settings: Mapping[str, Any]
) -> Selection | None:
    """Reads the selection of a run of version 0.1.0, which is stored only with its model."""
    file, stored = folder / "model" / "metrics.json", checkpoint.get(KEY, {})
    trained = checkpoint["hyper_parameters"].get("propagation")
    if "data" in stored or trained != settings["propagation"] or not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    training, plain = found.get("training", {}), found.get("selection")
    if not plain or training.get("best_epoch") != count_epochs(checkpoint):
        return None  # the weights have been trained further since
    return Selection.from_dict(plain)


def stored_selection(checkpoint: dict[str, Any], settings: Mapping[str, Any]) -> Selection | None:
    """Returns the propagation selected by ``fit``, unless the search space has changed."""
    plain = checkpoint.get(KEY, {}).get("selection")
    trained = checkpoint.get("hyper_parameters", {})
    if plain is None or trained.get("propagation") != settings["propagation"]:
        return None
    return Selection.from_dict(plain)


def describe_other_options(
    checkpoint: dict[str, Any], settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns a note for each option of the ranking that differs from the run."""
    trained = checkpoint.get("hyper_parameters", {})
    if trained.get("episodes"):
        stored = EpisodeSettings.from_stored(trained["episodes"]).to_dict()
        trained = trained | {"episodes": stored}
    if trained.get("proximity"):
        stored = ProximitySearch.of(trained["proximity"]).to_dict()  # with what is new since
        trained = trained | {"proximity": stored}
    names = [name for name in (*_OF_RANKING, "seed") if name in trained]
    before, after = (_flatten({name: part[name] for name in names}) for part in (trained, settings))
    return tuple(
        f"ranked with {_option(name)} {after.get(name)!r}, where the run has {before.get(name)!r}"
        for name in before | after
        # The seed of a random start is that of the run.
        if before.get(name) != after.get(name) and name != "propagation.settings.seed"
    )


def is_other_data(checkpoint: dict[str, Any], keys: dict[str, str]) -> bool | None:
    """Whether the data differ from those of a checkpoint, None if it does not store their hashes.

    Test triples may be added to data without test triples.
    """
    own = checkpoint.get(KEY, {}).get("data")
    if own is None:
        return None
    names = (own.keys() | keys.keys()) - (set() if "test" in own else {"test"})
    return any(own.get(name) != keys.get(name) for name in names)


def describe_unfinished_training(checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """Describes an interrupted training for records, None if the training was finished."""
    stored = checkpoint.get(KEY, {})
    if "selection" in stored or "data" not in stored:
        return None
    epochs = count_epochs(checkpoint)
    return {
        "epochs": epochs,
        "best_epoch": epochs,
        "stopped": "interrupted: the best weights so far",
        "seconds": float(stored["seconds"]),
    }


def _option(name: str) -> str:
    return "--seed_everything" if name == "seed" else f"--model.{name}"


def _flatten(options: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        place = f"{above}{name}"
        found |= _flatten(value, f"{place}.") if isinstance(value, Mapping) else {place: value}
    return found


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically: to a temporary file in the same folder, which is renamed.

    Lightning uses the system's folder for temporary files. If that is on another disk, the file is
    copied, and a process killed meanwhile leaves an incomplete checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves a checkpoint.

        Raises:
            StorageError: If writing fails. An existing checkpoint is then unchanged.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        # Written without a buffer, since a table may take half of the memory.
        write_bytes(path, lambda file: torch.save(checkpoint, file))


_PRECISIONS = ("32-true", "64-true", "16-mixed", "bf16-mixed")


def check_trainer(trainer: Trainer) -> None:
    """Checks the options ``precision`` and ``overfit_batches`` of a trainer.

    With mixed precision, distances, propagation and loss are still computed in at least single
    precision.

    Raises:
        ValueError: If the precision is below single precision, or ``overfit_batches`` is set.
    """
    if trainer.precision not in _PRECISIONS:
        raise ValueError(
            f"'precision' of the trainer must be one of {', '.join(_PRECISIONS)}, since vectors "
            f"need at least single precision (got {trainer.precision})"
        )
    if trainer.overfit_batches:  # type: ignore[attr-defined]
        raise ValueError(
            "'overfit_batches' is not supported, since validation would rank a part of its "
            "triples: train on a small 'train.txt', or limit --trainer.limit_train_batches"
        )


def check_length(trainer: Trainer) -> None:
    """Checks that a training has at least one step.

    Raises:
        DataError: If the options of the trainer allow no step.
    """
    if 0 in (trainer.max_epochs, trainer.max_steps, trainer.limit_train_batches):  # type: ignore[attr-defined]
        raise no_step_error()


def no_step_error() -> DataError:
    """Returns the error of a training without a step."""
    return DataError(
        "nothing was trained, so there is no model: see trainer.max_epochs, trainer.max_steps, "
        "trainer.max_time and trainer.limit_train_batches"
    )
