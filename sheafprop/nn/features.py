"""Features as the operators take them, and what comes back."""

import torch
from torch import Tensor

from sheafprop.errors import DivergenceError
from sheafprop.kernels.backend import all_finite, outside_inference
from sheafprop.nn.trainable_sheaf import warn_unregistered
from sheafprop.sheaf.graph_checks import check_features, check_finite_features
from sheafprop.sheaf.plan import PropagationPlan, working_dtype
from sheafprop.sheaf.relation_sheaf import RelationSheaf

_HALF = (torch.float16, torch.bfloat16, torch.complex32)


def to_sections(x: Tensor) -> Tensor:
    """Brings ``[N, F]`` or ``[B, N, F]`` to the operators' ``[N, s, F]``."""
    return x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1)


def from_sections(sections: Tensor, like: Tensor) -> Tensor:
    """Brings sections back to the shape that :func:`to_sections` was given."""
    return sections.squeeze(1) if like.dim() == 2 else sections.transpose(0, 1)


def with_free(sections: Tensor, plan: PropagationPlan, free: Tensor) -> Tensor:
    """All vertices, with new values at the free ones and the boundary untouched."""
    if plan.num_free == plan.num_nodes:
        return free
    return sections.index_copy(0, plan.free_index, free)


def prepare_features(x: Tensor, sheaf: RelationSheaf) -> Tensor:
    """Checks features and brings them to the number type that the layers compute in."""
    check_features(x, sheaf)
    warn_unregistered(sheaf)
    if torch.is_grad_enabled():
        x = outside_inference(x)
    return x.to(working_dtype(x.dtype, sheaf))


def round_result(out: Tensor, x: Tensor) -> Tensor:
    """Rounds a result to half precision where the features ``x`` are.

    Raises:
        DivergenceError: If it is too large for that type.
    """
    if x.dtype not in _HALF:
        return out
    rounded = out.to(x.dtype)
    if not all_finite(torch.view_as_real(rounded) if rounded.is_complex() else rounded):
        raise DivergenceError(
            f"the values became too large for {x.dtype}: scale the features down, or take bfloat16 "
            "or single precision"
        )
    return rounded


def check_result(out: Tensor, x: Tensor) -> None:
    """Refuses a result that is not finite, and says whether the features were to blame."""
    if not all_finite(out):
        check_finite_features(x)
        raise DivergenceError(
            f"the values became too large for {out.dtype}: scale the features or maps down, or "
            "take double precision"
        )
