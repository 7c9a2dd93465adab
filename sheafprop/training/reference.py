"""A model trained on the inference graph itself, to compare propagation with."""

from typing import TYPE_CHECKING

import torch
from tqdm.auto import trange

from sheafprop.data.inductive_data import InductiveData
from sheafprop.errors import DivergenceError
from sheafprop.kge import KGEModel
from sheafprop.ranking import TripleFilter
from sheafprop.training.cosine_decay import CosineDecay
from sheafprop.training.epoch_batch_sampler import EpochBatchSampler

if TYPE_CHECKING:
    from sheafprop.training.sheaf_completion import SheafCompletion


def train_reference(
    module: "SheafCompletion",
    data: InductiveData,
    *,
    epochs: int | None,
    batch_size: int,
    steps: int = -1,
) -> KGEModel:
    """Trains a fresh model of the module's kind on the observed inference graph.

    Settings, batches and epochs are those of the module's own training, or as many whole epochs as
    ``steps`` begin where ``epochs`` is None; validation and test triples are not looked at, so the
    last epoch is taken.
    """
    # Lightning tests without gradients, and in inference mode by default.
    with torch.inference_mode(False), torch.enable_grad():
        triples = data.inference.triples.to(module.device)
        model = module.build(data.inference.num_nodes, data.num_relations).to(module.device)
        optimizer = module.build_optimizer(model)
        sampler = EpochBatchSampler(len(triples), batch_size, module.settings["seed"])
        if epochs is None:
            epochs = max(1, -(-steps // len(sampler)))
        decay = CosineDecay((module.settings["lr_epochs"] or epochs) * len(sampler))
        known = None
        if module.settings["leave_out_known"]:
            known = TripleFilter(triples, data.inference.num_nodes, data.num_relations)
        constant = module.settings["lr_schedule"] == "constant"
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 1.0 if constant else decay(step)
        )
        for epoch in trange(epochs, desc="training the reference", delay=1, leave=False):
            sampler.set_epoch(epoch)
            for batch in sampler:
                number = torch.tensor(batch, device=module.device)
                loss = module.batch_loss(model, triples[number], number, epoch, known)
                if not bool(torch.isfinite(loss)):
                    raise DivergenceError(
                        f"the reference's training loss became {float(loss)} in epoch {epoch}: "
                        "lower the learning rate"
                    )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                model.constrain_entities_()
    return model
