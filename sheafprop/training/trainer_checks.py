"""Options of Lightning's trainer that training makes no sense with."""

from lightning.pytorch import Trainer

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
