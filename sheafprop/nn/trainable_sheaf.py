import dataclasses
import inspect
import warnings
from typing import Any

import torch
from torch.nn import Module, Parameter

from sheafprop.sheaf.relation_sheaf import RelationSheaf

# Callers of a layer that are searched for the module that holds its sheaf.
_FRAMES = 32


class TrainableSheaf(Module):
    r"""The maps and translations of a sheaf as the parameters of a module.

    A :class:`~sheafprop.sheaf.RelationSheaf` is a value like a tensor: a module that keeps one as
    an attribute does not register its parameters. This module registers a parameter for each tensor
    of the sheaf, by the name of its field, and builds the sheaf from them when it is called. They
    are in ``parameters()`` and ``state_dict()``, follow ``.to()`` and ``.double()``, and take
    ``torch.nn.utils.parametrize``. A tensor given twice is one parameter; complex tensors are kept
    as real pairs ``[..., 2]``, so that ``.double()`` and optimizers see real numbers.

    Maps that must keep a form, such as the phases of RotatE, need a parametrization, or a module of
    your own that builds the sheaf in its ``forward``.

    Args:
        sheaf (RelationSheaf): Initial maps and translations, which are copied.

    Raises:
        ValueError: If ``sheaf`` is not a sheaf, or has no tensors.

    Example:
        >>> self.sheaf = TrainableSheaf(IdentitySheaf(0.1 * torch.randn(num_relations, 64)))
        >>> self.conv = SheafPropagation(num_iterations=4)
        >>> x = self.conv(x, edge_index, edge_type, self.sheaf())
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
    """Warns where the module that calls a layer keeps the sheaf as an attribute, but has not
    registered the sheaf's parameters: an optimizer will not find them either.

    The callers alone can tell this apart from a sheaf that a module builds in its ``forward``.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    wanting = {
        name: tensor
        for name, tensor in sheaf.tensors().items()
        if isinstance(tensor, Parameter) and tensor.requires_grad
    }
    if not wanting:
        return
    frame = inspect.currentframe()
    for depth in range(_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return
        module = frame.f_locals.get("self")
        if not isinstance(module, Module):
            continue
        kept = [name for name, value in vars(module).items() if value is sheaf]
        if not kept:
            continue
        registered = {id(parameter) for parameter in module.parameters()}
        missing = [name for name, tensor in wanting.items() if id(tensor) not in registered]
        if missing:
            warnings.warn(
                f"'{missing[0]}' of the sheaf '{kept[0]}' is a Parameter that is not registered in "
                f"{type(module).__name__}: it is neither in parameters() nor in state_dict(), and "
                f"an optimizer does not train it. Write self.{kept[0]} = TrainableSheaf(...) and "
                f"pass self.{kept[0]}() to the layer",
                stacklevel=depth + 2,
            )
        return
