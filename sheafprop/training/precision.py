"""Which of Lightning's precisions training makes sense in."""

from lightning.pytorch import Trainer

_PRECISIONS = ("32-true", "64-true", "16-mixed", "bf16-mixed")


def check_precision(trainer: Trainer) -> None:
    """Refuses a precision that would hold vectors in less than single precision.

    Mixed precision changes nothing but what runs outside distances, propagation and loss, which
    are computed in single precision at least.

    Raises:
        ValueError: If the precision is none of those that are supported.
    """
    if trainer.precision not in _PRECISIONS:
        raise ValueError(
            f"the trainer's precision must be one of {', '.join(_PRECISIONS)}, since vectors are "
            f"held in single precision at least (got {trainer.precision})"
        )
