from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafprop.data import connected_components
from sheafprop.inductive.feature_map import Anchors, weigh_by_facts
from sheafprop.nn.anchors import add_anchor_triples
from sheafprop.sheaf import PropagationPlan, RelationSheaf
from sheafprop.sheaf.identity_relation import add_identity_relation
from sheafprop.sheaf.relation_sheaf import double_precision


@dataclass(frozen=True)
class FreeSystem:
    """The subgraph that determines the vectors of new entities, with local ids.

    Args:
        x (Tensor): Vectors of all local entities ``[N, s, d]``; rows of free entities are not used.
        boundary_mask (Tensor): Known and fixed entities, bool ``[N]``.
        edge_index (Tensor): Heads and tails of the facts of free entities, ``[2, E]``.
        edge_type (Tensor): Relations of the facts, ``[E]``.
        labels (sequence of str): Labels of the free entities in the order of their ids.
        edge_weight (Tensor, optional): Weights of the facts, ``[E]``. (default: ones)
    """

    x: Tensor
    boundary_mask: Tensor
    edge_index: Tensor
    edge_type: Tensor
    labels: Sequence[str]
    edge_weight: Tensor | None = None

    def anchored(self, anchors: Anchors, num_relations: int) -> "FreeSystem":
        """Adds a known entity for each anchor, and a fact that connects it to its free entity.

        Args:
            anchors (Anchors): Targets and weights; ``nodes`` are positions among the free entities.
            num_relations (int): Number of relations :math:`R`, used as the id of the new relation.
        """
        if not anchors.nodes.numel():
            return self
        nodes = (~self.boundary_mask).nonzero().flatten()[anchors.nodes.to(self.x.device)]
        target = anchors.target.to(self.x).unsqueeze(1).expand(-1, self.x.shape[1], -1)
        ends = torch.bincount(self.edge_index.flatten(), minlength=len(self.x))
        triples = add_anchor_triples(
            self.edge_index,
            self.edge_type,
            self.edge_weight,
            self.boundary_mask,
            nodes=nodes,
            weight=weigh_by_facts(anchors.weight.to(nodes.device), ends[nodes]),
            num_relations=num_relations,
        )
        return FreeSystem(
            torch.cat([self.x, target]),
            triples.boundary_mask,
            triples.edge_index,
            triples.edge_type,
            self.labels,
            triples.edge_weight,
        )

    def own_sheaf(self, sheaf: RelationSheaf) -> tuple[RelationSheaf, Tensor]:
        """Returns the sheaf of the relations that occur, and the renumbered relations ``[E]``."""
        used, edge_type = torch.unique(self.edge_type, return_inverse=True)
        known = used[used < sheaf.num_relations]
        own = sheaf.select(known)
        return (own if len(known) == len(used) else add_identity_relation(own)), edge_type

    def part(self, free: Tensor) -> "FreeSystem":
        """Returns the system of free entities, bool ``[N]``, without facts to the others."""
        head, tail = self.edge_index
        edges = free[head] | free[tail]
        kept = free.clone()
        kept[self.edge_index[:, edges].flatten()] = True
        number = torch.cumsum(kept, 0) - 1
        own = free[~self.boundary_mask].tolist()
        return FreeSystem(
            self.x[kept],
            self.boundary_mask[kept],
            number[self.edge_index[:, edges]],
            self.edge_type[edges],
            [label for label, inside in zip(self.labels, own, strict=True) if inside],
            None if self.edge_weight is None else self.edge_weight[edges],
        )

    def batches(self, size: int) -> Iterator[tuple[Tensor, "FreeSystem"]]:
        """Yields independent parts of about ``size`` facts, with the positions of their entities.

        Connected free entities stay together, so a part may be larger.
        """
        free = ~self.boundary_mask
        component, _ = components(self)
        owner = component[torch.where(free[self.edge_index[0]], *self.edge_index)]
        count = torch.bincount(owner, minlength=len(free))
        nodes = free.nonzero().flatten()
        roots, root = torch.unique(component[nodes], return_inverse=True)
        before = torch.cumsum(count[roots], 0) - count[roots]
        part, number = torch.unique(before // size, return_inverse=True)
        of_component = torch.zeros_like(count)
        of_component[roots] = number
        edges, num_edges = _group(of_component[owner], len(part))
        positions, num_nodes = _group(number[root], len(part))
        for own, position in zip(edges.split(num_edges), positions.split(num_nodes), strict=True):
            ends = self.edge_index[:, own]
            local = torch.unique(torch.cat([ends.flatten(), nodes[position]]))
            yield (
                position,
                FreeSystem(
                    self.x[local],
                    self.boundary_mask[local],
                    torch.searchsorted(local, ends),
                    self.edge_type[own],
                    [self.labels[i] for i in position.tolist()],
                    None if self.edge_weight is None else self.edge_weight[own],
                ),
            )

    def plan(self, sheaf: RelationSheaf) -> PropagationPlan:
        """Returns the plan in double precision, for the relations that occur."""
        own, edge_type = self.own_sheaf(sheaf)
        return PropagationPlan(
            self.edge_index,
            edge_type,
            own.map_tensors(lambda tensor: double_precision(tensor.detach())),
            len(self.x),
            edge_weight=self.edge_weight,
            boundary_mask=self.boundary_mask,
            normalization="block",
            dtype=torch.complex128 if self.x.is_complex() else torch.float64,
        )


def components(system: FreeSystem, anchors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the component of each free entity, and whether it is connected to an anchor.

    Args:
        system (FreeSystem): The system.
        anchors (Tensor, optional): Bool ``[N]``. (default: all known entities)
    """
    head, tail = system.edge_index
    known = system.boundary_mask
    anchors = known if anchors is None else anchors
    inner = ~known[head] & ~known[tail]
    component = connected_components(system.edge_index[:, inner], len(known))
    reaches = torch.zeros_like(known)
    reaches[component[tail[anchors[head] & ~known[tail]]]] = True
    reaches[component[head[anchors[tail] & ~known[head]]]] = True
    return component, reaches[component] & ~known


def _group(number: Tensor, groups: int) -> tuple[Tensor, list[int]]:
    """Returns positions sorted stably by group, and the sizes of the groups."""
    return number.argsort(stable=True), torch.bincount(number, minlength=groups).tolist()
