import dataclasses
import inspect
import warnings
from typing import Any

import torch
from torch.nn import Module, Parameter

from sheafprop.sheaf.relation_sheaf import RelationSheaf

# Callers of a layer that are searched for the module that holds its sheaf.
_FRAMES = 32
# Containers within containers that are searched for the sheaf, and items in each.
_DEPTH, _ITEMS = 3, 1000


class TrainableSheaf(Module):
    r"""The maps and translations of a sheaf as the parameters of a module.

    A :class:`~sheafprop.sheaf.RelationSheaf` is a value like a tensor: a module that holds one as
    an attribute, or in a dict or list, does not register its parameters. This module registers a
    parameter for each tensor of the sheaf, under the name of its field, and builds the sheaf from
    them when it is called. The parameters are in ``parameters()`` and ``state_dict()``, follow
    ``.to()`` and ``.double()``, and support ``torch.nn.utils.parametrize``. A tensor that is given
    twice is one parameter. Complex tensors are stored as real pairs ``[..., 2]``, so that
    ``.double()`` and optimizers work on real numbers.

    Constrained maps, such as those of modulus one in RotatE, require a parametrization or a custom
    module that builds the sheaf in its ``forward``.

    Args:
        sheaf (RelationSheaf): Initial maps and translations, which are copied.

    Raises:
        ValueError: If ``sheaf`` is not a sheaf, or has no tensors.

    Example:
        >>> from sheafprop import IdentitySheaf, SheafPropagation
        >>> sheaf = TrainableSheaf(IdentitySheaf(torch.zeros(2, 8)))
        >>> sheaf
        TrainableSheaf(IdentitySheaf, translation=[2, 8])
        >>> x, edge_index = torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])
        >>> SheafPropagation(4)(x, edge_index, torch.tensor([0, 1]), sheaf()).shape
        torch.Size([3, 8])
    """

    def __init__(self, sheaf: RelationSheaf):
        super().__init__()
        if not isinstance(sheaf, RelationSheaf):
            raise ValueError(f"'sheaf' must be a RelationSheaf (got {type(sheaf).__name__})")
        tensors = sheaf.tensors()
        if not tensors:
            raise ValueError(f"'sheaf' must have maps or translations to train (got {sheaf})")
        self._kind = type(sheaf)
        own: Any = sheaf
        names = [field.name for field in dataclasses.fields(own) if field.init]
        self._settings = {name: getattr(sheaf, name) for name in names if name not in tensors}
        #: The parameter behind each field, and whether it holds complex numbers.
        self._sources: dict[str, tuple[str, bool]] = {}
        first: dict[int, str] = {}
        for name, tensor in tensors.items():
            source = first.setdefault(id(tensor), name)
            self._sources[name] = source, tensor.is_complex()
            if source == name:
                value = tensor.detach().resolve_conj().clone()
                value = torch.view_as_real(value).contiguous() if value.is_complex() else value
                self.register_parameter(name, Parameter(value))

    def forward(self) -> RelationSheaf:
        """Builds the sheaf of the current parameters."""
        kept = {source: getattr(self, source) for source, _ in self._sources.values()}
        for source, is_complex in set(self._sources.values()):
            if is_complex:
                kept[source] = torch.view_as_complex(kept[source].contiguous())
        tensors = {name: kept[source] for name, (source, _) in self._sources.items()}
        return self._kind(**self._settings, **tensors)

    def extra_repr(self) -> str:
        shown = [f"{name}={list(p.shape)}" for name, p in self.named_parameters(recurse=False)]
        return ", ".join([self._kind.__name__, *shown])


def warn_unregistered(sheaf: RelationSheaf) -> None:
    """Warns where the module that calls a layer keeps the sheaf or its parameters as an attribute,
    or in dicts, lists and tuples there, but no calling module has registered the parameters: an
    optimizer will not find them either.

    Only the callers can distinguish this from a sheaf that a module builds in its ``forward``. Not
    found are parameters in containers of many items or inside other objects.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    wanting = {
        id(tensor): name
        for name, tensor in sheaf.tensors().items()
        if isinstance(tensor, Parameter) and tensor.requires_grad
    }
    if not wanting:
        return
    frame, warning = inspect.currentframe(), None
    for depth in range(_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is None:
            break
        module = frame.f_locals.get("self")
        if not isinstance(module, Module):
            continue
        for parameter in module.parameters():
            wanting.pop(id(parameter), None)
        if not wanting:
            return
        sought = {id(sheaf), *wanting}
        kept = [name for name, value in vars(module).items() if _holds(value, sought, _DEPTH)]
        if kept and warning is None:
            name, owner = next(iter(wanting.values())), type(module).__name__
            warning = (
                f"'{name}' of the sheaf in '{kept[0]}' is a Parameter that is not registered in "
                f"{owner}: it is neither in parameters() nor in state_dict(), and an optimizer "
                f"does not train it. Write self.{kept[0]} = TrainableSheaf(...), or a ModuleDict "
                "or ModuleList of several, and pass what calling it returns to the layer",
                depth + 2,
            )
    if warning is not None:
        warnings.warn(warning[0], stacklevel=warning[1])


def _holds(value: object, sought: set[int], depth: int) -> bool:
    """Whether a value is one of some objects, or a short container with one of them inside."""
    if id(value) in sought:
        return True
    if depth == 0 or not isinstance(value, dict | list | tuple | set) or len(value) > _ITEMS:
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds(item, sought, depth - 1) for item in items)
