"""Options of Lightning's trainer that training makes no sense with."""

from lightning.pytorch import Trainer

from sheafprop.errors import DataError

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
