from typing import Literal

import torch
from torch import Tensor

from sheafprop.kernels.backend import is_traced
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.relation_sheaf import RelationSheaf

_State = Literal["same", "changed", "other"]


class PlanInputs:
    """What a plan was built from, to tell whether a layer is given the same again.

    A tensor is recognized by its memory and by how often it has been written to, which costs
    nothing; only another tensor is compared by its values. Traced tensors are not compared. What
    is written through ``.data`` or a numpy view counts as no write and is not noticed; another
    tensor put in the place of ``.data`` is.

    Args:
        graph (GraphInput): The graph. None of the tensors is an inference tensor, which would not
            count what is written to it; the mask is there, a copy that nobody writes to.
    """

    def __init__(self, graph: GraphInput):
        self.edge_index, self.edge_type, sheaf, self.edge_weight, boundary_mask = graph
        edge_index, edge_type, edge_weight = self.edge_index, self.edge_type, self.edge_weight
        assert boundary_mask is not None
        self._num_edges, self._boundary_mask = edge_type.numel(), boundary_mask
        self._edges = {"edge_index": _Record(edge_index), "edge_type": _Record(edge_type)}
        self._weight = None if edge_weight is None else _Record(edge_weight)
        self._kind = type(sheaf)
        self._maps = {name: _Record(tensor) for name, tensor in sheaf.tensors().items()}
        self._num_relations = sheaf.num_relations
        self._graded = torch.is_grad_enabled()

    @property
    def misses_gradients(self) -> bool:
        """Whether the maps want gradients now, which the plan was built without."""
        return (
            torch.is_grad_enabled()
            and not self._graded
            and any(record.tensor.requires_grad for record in self._maps.values())
        )

    def difference(self, graph: GraphInput) -> str | None:
        """What differs, as the end of a sentence that begins with 'the plan was built for'."""
        edge_index, edge_type, sheaf, edge_weight, boundary_mask = graph
        if edge_type.numel() != self._num_edges:
            return f"{self._num_edges} edges (got {edge_type.numel()})"
        for name, given in (("edge_index", edge_index), ("edge_type", edge_type)):
            if found := _describe(self._edges[name].state(given), f"'{name}'"):
                return found
        if found := _describe(self._weight_state(edge_weight), "'edge_weight'"):
            return found
        if not self._is_boundary(boundary_mask):
            known = 0 if boundary_mask is None else int(boundary_mask.sum())
            return (
                f"another 'boundary_mask' (with {int(self._boundary_mask.sum())} known vertices, "
                f"got {known})"
            )
        return _describe(self._sheaf_state(sheaf), "sheaf")

    def _weight_state(self, given: Tensor | None) -> _State:
        if self._weight is not None and given is not None:
            return self._weight.state(given)
        one = given if self._weight is None else self._weight.tensor
        if one is None:
            return "same"
        # None stands for ones.
        return "same" if bool((one == 1).all()) and one.dim() == 1 else "other"

    def _is_boundary(self, given: Tensor | None) -> bool:
        if given is None:
            return not bool(self._boundary_mask.any())
        return is_traced(given) or _equal(self._boundary_mask, given)

    def _sheaf_state(self, sheaf: RelationSheaf) -> _State:
        tensors = sheaf.tensors()
        if (
            type(sheaf) is not self._kind
            or sheaf.num_relations != self._num_relations
            or tensors.keys() != self._maps.keys()
        ):
            return "other"
        for name, given in tensors.items():
            record = self._maps[name]
            state = record.state(given)
            if state != "same":
                return state
            # Equal values do not do for gradients, which lead to the tensors of the plan.
            if given is not record.tensor and (given.requires_grad or record.tensor.requires_grad):
                return "other"
        return "same"


class _Record:
    """A tensor as it was when the plan was built."""

    def __init__(self, tensor: Tensor):
        self.tensor, self._version = tensor, tensor._version
        self._place = None if is_traced(tensor) else tensor.data_ptr()

    def state(self, given: Tensor) -> _State:
        own = self.tensor
        if is_traced(own) or is_traced(given):
            return "same" if own.shape == given.shape else "other"
        if own._version != self._version or own.data_ptr() != self._place:
            return "changed"
        shared = (
            own.data_ptr() == given.data_ptr()
            and own.dtype == given.dtype
            and own.device == given.device
            and own.shape == given.shape
            and own.stride() == given.stride()
            and own.is_conj() == given.is_conj()
            and own.is_neg() == given.is_neg()
        )
        return "same" if own is given or shared or _equal(own, given) else "other"


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.device != b.device:
        return False
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.equal(a.to(dtype), b.to(dtype))


def _describe(state: _State, what: str) -> str | None:
    if state == "same":
        return None
    return (
        f"another {what}"
        if state == "other"
        else f"values of {what} that were changed in place since"
    )
