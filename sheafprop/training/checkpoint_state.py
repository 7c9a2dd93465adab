"""What a checkpoint holds beside Lightning's own state, and what must agree with it; and options of
the trainer that training makes no sense with."""

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
from sheafprop.inductive.propagation_search import Selection
from sheafprop.kge import KGEModel
from sheafprop.training.inductive_data_module import InductiveDataModule

#: Under this name, a dictionary of plain values.
KEY = "sheafprop"
#: Options that the weights of a checkpoint have settled; going on settles the second ones too.
_OF_WEIGHTS = ("kge", "hidden_channels", "kge_args")
_OF_TRAINING = ("optimizer", "sparse", "seed")
#: What stands for an optimizer or a schedule that was given as a function, which a checkpoint does
#: not hold.
_INJECTED = "of a class"
#: Options that the stored state of such a schedule has settled.
_OF_SCHEDULE = ("lr_schedule", "lr", "weight_decay")
#: Options that say how to propagate and to rank, which a run that is trained may still change.
_OF_RANKING = ("propagation", "episodes", "proximity")
AFTER_TRAINING = (*_OF_RANKING, "protocols", "reference")


def describe_training(model: KGEModel, data: InductiveDataModule, seconds: float) -> dict[str, Any]:
    """What a checkpoint holds under :data:`KEY`: sizes, labels, and what its steps depended on."""
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
    """Labels of the entities and relations; version 0.1.0 has not stored those of relations."""
    stored = checkpoint[KEY]
    relations = stored.get("relations")
    return (
        Vocabulary(stored["entities"], kind="entities"),
        None if relations is None else Vocabulary(relations, kind="relations"),
    )


def renumber_like(checkpoint: dict[str, Any], data: InductiveData) -> InductiveData:
    """The data in the ids of a checkpoint, whatever the order of lines in the files.

    Raises:
        DataError: If the labels are not those of the checkpoint.
    """
    if KEY not in checkpoint:
        return data
    entities, relations = vocabularies(checkpoint)
    own = data.train.relations
    assert own is not None
    if relations is None:
        if data.train.entities != entities:
            # In another order of lines the relations may have other ids too.
            renumber(data, entities, own)  # raises the right error where the labels differ
            raise DataError(
                "the checkpoint is of version 0.1.0, which did not store relations, and the lines "
                "of the training file are in another order than then: restore their order"
            )
        relations = own
    return renumber(data, entities, relations)


def count_epochs(checkpoint: dict[str, Any]) -> int:
    """How many epochs the weights of a checkpoint were trained for.

    Its entry ``epoch`` is one more where it was saved after the last epoch than where it was saved
    during it, so the epochs that began are counted, except in a checkpoint of weights alone.
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
    """Refuses options and data that cannot hold for a checkpoint, before anything is changed.

    Args:
        settings (mapping): Hyper-parameters of the module that is to take the weights.
        checkpoint (dict): The checkpoint.
        data (InductiveDataModule): The data, with its batches.
        resume (bool): Whether training goes on.
        max_epochs (int, optional): Epochs in all, where training goes on.
        max_steps (int): Steps in all, likewise; -1 for as many as the epochs have.

    Raises:
        DataError: If an option or the data differ from what the weights were trained with.
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
    """Refuses other options of a schedule of a class, whose stored state would win without a word.

    Args:
        stored (mapping): The section ``model`` of a run's configuration.
        now (mapping): The same as it is given now.

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
    """What a run of version 0.1.0 chose, which stands beside its model alone."""
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
    """The propagation that ``fit`` chose for these weights, unless other ones are to be tried."""
    plain = checkpoint.get(KEY, {}).get("selection")
    trained = checkpoint.get("hyper_parameters", {})
    if plain is None or trained.get("propagation") != settings["propagation"]:
        return None
    return Selection.from_dict(plain)


def describe_other_options(
    checkpoint: dict[str, Any], settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Options that a ranking follows and a run was not given, a note for each."""
    trained = checkpoint.get("hyper_parameters", {})
    names = [name for name in (*_OF_RANKING, "seed") if name in trained]
    before, after = (_flatten({name: part[name] for name in names}) for part in (trained, settings))
    return tuple(
        f"ranked with {_option(name)} {after.get(name)!r}, where the run has {before.get(name)!r}"
        for name in before | after
        # The seed of a random start is that of the run.
        if before.get(name) != after.get(name) and name != "propagation.settings.seed"
    )


def is_other_data(checkpoint: dict[str, Any], keys: dict[str, str]) -> bool | None:
    """Whether data differ from those of a checkpoint; None for one that does not hold their keys.

    Test triples may be added to the data of a run that had none.
    """
    own = checkpoint.get(KEY, {}).get("data")
    if own is None:
        return None
    names = (own.keys() | keys.keys()) - (set() if "test" in own else {"test"})
    return any(own.get(name) != keys.get(name) for name in names)


def describe_unfinished_training(checkpoint: dict[str, Any]) -> dict[str, Any] | None:
    """What a record says of a training that has not come to its end, None for one that has."""
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
    """Writes a checkpoint beside the old one and renames it, so that one of them is always whole.

    Lightning's own way goes through the folder for temporary files. Where that lies on another
    disk, the last step is a copy, and a process that is killed meanwhile leaves half a checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves a checkpoint.

        Raises:
            StorageError: If it cannot be written; the old one is still there then.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        # Straight into the file: a table may take half of the memory.
        write_bytes(path, lambda file: torch.save(checkpoint, file))


_PRECISIONS = ("32-true", "64-true", "16-mixed", "bf16-mixed")


def check_trainer(trainer: Trainer) -> None:
    """Refuses vectors in less than single precision, and validation on a part of its triples.

    Mixed precision changes nothing but what runs outside distances, propagation and loss, which
    are computed in single precision at least.

    Raises:
        ValueError: If the precision is not supported, or batches are to be overfitted.
    """
    if trainer.precision not in _PRECISIONS:
        raise ValueError(
            f"the trainer's precision must be one of {', '.join(_PRECISIONS)}, since vectors are "
            f"held in single precision at least (got {trainer.precision})"
        )
    if trainer.overfit_batches:  # type: ignore[attr-defined]
        raise ValueError(
            "'overfit_batches' is not supported, since validation would rank a part of its "
            "triples: train on a small 'train.txt', or limit --trainer.limit_train_batches"
        )


def check_length(trainer: Trainer) -> None:
    """Refuses a new training without a step.

    Raises:
        DataError: If an option of the trainer allows none.
    """
    if 0 in (trainer.max_epochs, trainer.max_steps, trainer.limit_train_batches):  # type: ignore[attr-defined]
        raise no_step_error()


def no_step_error() -> DataError:
    """The error of a training without a step."""
    return DataError(
        "nothing was trained, so there is no model: see trainer.max_epochs, trainer.max_steps, "
        "trainer.max_time and trainer.limit_train_batches"
    )
