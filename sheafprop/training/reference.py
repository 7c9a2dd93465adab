"""Trains a reference model on the inference graph, for comparison with propagation."""

import math
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from sheafprop.data.inductive_data import InductiveData
from sheafprop.inductive.section_scorer import SectionScorer
from sheafprop.training.inductive_data_module import InductiveDataModule


def prepare_reference(
    module: LightningModule,
    data: InductiveData,
    *,
    max_epochs: int | None,
    max_steps: int = -1,
    batch_size: int,
) -> tuple[InductiveData, int]:
    """Returns the observed inference graph as training data, and the number of epochs.

    Validation and test triples are not used.

    Args:
        module (LightningModule): The module, such as a copy by ``SheafCompletion.copy``.
        data (InductiveData): The data.
        max_epochs (int, optional): Number of epochs; None or -1 to derive it from ``max_steps``.
        max_steps (int): Number of steps, used without ``max_epochs``.
        batch_size (int): Number of triples per batch.
    """
    if max_epochs in (None, -1):
        max_epochs = max(1, math.ceil(max_steps / math.ceil(data.inference.num_edges / batch_size)))
    if module.hparams.get("lr_schedule") == "cosine" and module.hparams["lr_epochs"]:
        # Later epochs would have a learning rate of zero.
        max_epochs = min(max_epochs, module.hparams["lr_epochs"])
    alone = replace(data, train=data.inference, train_valid=None, valid=None, test=None)
    return alone, max_epochs


def train_reference(
    module: LightningModule,
    data: InductiveData,
    *,
    batch_size: int,
    device: torch.device | None = None,
    progress: bool = False,
    **length: int | None,
) -> None:
    """Trains a new module on the observed inference graph and keeps the last weights.

    Args:
        module, data, batch_size, **length: See :func:`prepare_reference`.
        device (torch.device, optional): The device. (default: the CPU)
        progress (bool): Whether to show Lightning's progress bar.
    """
    device = torch.device("cpu") if device is None else device
    alone, max_epochs = prepare_reference(module, data, batch_size=batch_size, **length)  # type: ignore[arg-type]
    # Lightning tests without gradients, and in inference mode by default.
    with torch.inference_mode(False), torch.enable_grad():
        trainer = Trainer(
            max_epochs=max_epochs,
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress,
        )
        trainer.fit(module, datamodule=InductiveDataModule.from_data(alone, batch_size=batch_size))
        module.to(device)


def reference_scorers(module: Any, data: InductiveData) -> dict[str, SectionScorer]:
    """Trains a reference model on the inference graph and returns its scorers by name.

    Args:
        module (SheafCompletion): The module with its trainer, whose options are used.
        data (InductiveData): The data.
    """
    trainer, reference = module.trainer, module.copy(reference=False)
    train_reference(
        reference,
        data,
        max_epochs=trainer.max_epochs,
        max_steps=trainer.max_steps,
        batch_size=trainer.datamodule.batch_size,
        device=module.device,
        progress=trainer.progress_bar_callback is not None,
    )
    vectors = reference.model.entity_vectors().detach().unsqueeze(1)
    name = f"{type(module.model).__name__} trained on the inference graph (reference)"
    return {name: SectionScorer(reference.model, vectors, [1.0])}
