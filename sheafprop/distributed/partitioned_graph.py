from collections.abc import Iterator

import torch
from torch import Tensor

from sheafprop.distributed.halo_exchange import HaloExchange
from sheafprop.distributed.ranks import Ranks
from sheafprop.kernels.build_fact_csr import TripleChunk, build_fact_csr
from sheafprop.kernels.fact_csr import FactCSR

# Triples that are numbered at once.
_CHUNK = 2**20


class PartitionedGraph:
    """The share of a knowledge graph that one rank works on.

    A rank owns the entities that a partition gives it, and computes their vectors. It has every
    triple that touches one of them. Of free (unknown) entities of other ranks it holds the
    neighbours of its own alone, the halo, whose vectors are exchanged before every step.

    Args:
        ranks (Ranks): The processes, from :func:`process_group`.
        owned (Tensor): Ids of the entities that this rank owns in the whole graph, ascending,
            int64 ``[n]``.
        remote (Tensor): Ids of the other ends of their triples, int64 ``[m]``.
        owner (Tensor): The ranks that own these, int64 ``[m]``.
        edge_index (Tensor): Triples that touch owned entities, int64 ``[2, E]``: places in
            ``owned``, then ``n`` and more for places in ``remote``.
        edge_type (Tensor): Relations ``[E]``.
        edge_weight (Tensor, optional): Weights ``[E]``.
        boundary_mask (Tensor, optional): Known entities, owned and remote, bool ``[n + m]``.
        key (Tensor, optional): Numbers by which one process would order the entities, int64
            ``[n + m]``. (default: their ids)

    Raises:
        ValueError: On all ranks, if the parts do not fit each other.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        owned: Tensor,
        remote: Tensor,
        owner: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
        key: Tensor | None = None,
    ):
        self.ranks = ranks
        n, size = len(owned), len(owned) + len(remote)
        known = torch.zeros(size, dtype=torch.bool) if boundary_mask is None else boundary_mask
        key = torch.cat([owned, remote]) if key is None else key
        is_free = ~known
        is_free_here = is_free.clone()
        is_free_here[n:] = False
        touched = is_free_here[edge_index[0]] | is_free_here[edge_index[1]]
        # Pairs of an owned entity and one of another rank.
        pairs = torch.cat([edge_index, edge_index.flip(0)], 1)
        here, there = pairs[:, (pairs[0] < n) & (pairs[1] >= n)]
        both = is_free[here] & is_free[there]
        asks, gives = is_free[here] & known[there], known[here] & is_free[there]

        meets = torch.zeros(n, dtype=torch.bool)
        meets[here[both]] = True
        order = [
            part.nonzero().flatten()
            for part in (is_free[:n] & ~meets, is_free[:n] & meets, known[:n])
        ]
        self.num_interior, self.num_free = len(order[0]), len(order[0]) + len(order[1])
        by_owner = torch.argsort(key[n:], stable=True)
        by_owner = by_owner[torch.argsort(owner[by_owner], stable=True)] + n
        wanted = torch.zeros(2, size, dtype=torch.bool)
        wanted[0, there[both]] = True
        wanted[1, there[asks]] = True
        halo, known_halo = (by_owner[mask[by_owner]] for mask in wanted)

        own = torch.cat(order)
        local = torch.cat([own, halo, known_halo])
        number = torch.full((size,), -1)
        number[local] = torch.arange(len(local))
        #: Ids of the owned entities in the order of their rows: free ones without neighbours in the
        #: halo, other free ones, known ones.
        self.owned = owned[own].to(ranks.device)
        self.num_halo = len(halo)
        self._key = key[local]

        def rows_for(some: Tensor, first: int) -> list[Tensor]:
            asking = owner[there[some] - n]
            found = []
            for rank in range(ranks.size):
                rows = here[some][asking == rank].unique()
                # In the order in which that rank receives them.
                found.append(number[rows[torch.argsort(key[rows], stable=True)]] - first)
            return found

        def counts(of: Tensor) -> list[int]:
            return torch.bincount(owner[of - n], minlength=ranks.size).tolist()

        #: Fetches the rows of the halo; free entities alone.
        self.exchange = HaloExchange(ranks, rows_for(both, 0), counts(halo), self.num_free)
        self.known_exchange = HaloExchange(
            ranks, rows_for(gives, self.num_free), counts(known_halo), len(own) - self.num_free
        )
        ends = number[edge_index[:, touched]]
        self.edge_index, self.edge_type = (t.to(ranks.device) for t in (ends, edge_type[touched]))
        self.edge_weight = None
        if edge_weight is not None:
            self.edge_weight = edge_weight[touched].to(ranks.device)
        #: Known entities among the owned ones, bool ``[n]``.
        self.boundary_mask = known[own].to(ranks.device)
        # Known entities that owned free ones meet, in the order of one process.
        met = torch.zeros(len(local), dtype=torch.bool)
        met[ends.flatten()] = True
        met[: self.num_free] = met[n : n + self.num_halo] = False
        sources = met.nonzero().flatten()
        self._known = sources[torch.argsort(self._key[sources], stable=True)]
        #: Ids of the known entities that owned free ones meet, in the order of their messages.
        self.known_sources = torch.cat([owned, remote])[local[self._known]]

    @classmethod
    def of_triples(
        cls,
        ranks: Ranks,
        edge_index: Tensor,
        edge_type: Tensor,
        assignment: Tensor,
        *,
        edge_weight: Tensor | None = None,
        boundary_mask: Tensor | None = None,
    ) -> "PartitionedGraph":
        """The share of a graph that every rank has in memory.

        Args:
            ranks (Ranks): The processes.
            edge_index, edge_type, edge_weight, boundary_mask: The whole graph, as layers take it.
            assignment (Tensor): The rank that owns each entity, ``[N]``, such as that of
                :class:`~sheafprop.data.partition.Partition`.

        Raises:
            ValueError: If the assignment names a rank that there is not.
            RankError: If other ranks were given another graph.
        """
        assignment = torch.as_tensor(assignment).long()
        if len(assignment) and not 0 <= int(assignment.min()) <= int(assignment.max()) < ranks.size:
            raise ValueError(
                f"'assignment' must name ranks from 0 to {ranks.size - 1} (got "
                f"{int(assignment.min())} to {int(assignment.max())}): make a partition of "
                f"{ranks.size} parts"
            )
        # What each rank has to do is found out on the CPU.
        edge_index, edge_type, assignment = (
            tensor.cpu() for tensor in (edge_index, edge_type, assignment)
        )
        edge_weight = None if edge_weight is None else edge_weight.cpu()
        boundary_mask = None if boundary_mask is None else boundary_mask.cpu()
        ranks.compare("the graph", edge_index, edge_type, assignment, edge_weight, boundary_mask)
        is_own = assignment == ranks.rank
        own = (is_own[edge_index[0]] | is_own[edge_index[1]]).nonzero().flatten()
        edge_index = edge_index[:, own].long()
        owned = is_own.nonzero().flatten()
        remote = edge_index[~is_own[edge_index]].unique()
        ids = torch.cat([owned, remote])
        number = torch.where(
            is_own[edge_index],
            torch.searchsorted(owned, edge_index),
            len(owned) + torch.searchsorted(remote, edge_index),
        )
        return cls(
            ranks,
            owned=owned,
            remote=remote,
            owner=assignment[remote],
            edge_index=number,
            edge_type=edge_type[own].long(),
            edge_weight=None if edge_weight is None else edge_weight[own],
            boundary_mask=None if boundary_mask is None else boundary_mask[ids],
        )

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """Heads and tails, and relations, of the triples that touch an owned free entity, as the
        layers take them beside a :class:`~sheafprop.distributed.PartitionedPlan`."""
        return self.edge_index, self.edge_type

    def rows(
        self,
        num_relations: int,
        *,
        merge: bool,
        ends: bool,
        dtype: torch.dtype,
        distinct: bool = False,
    ) -> FactCSR:
        """The messages into owned free entities, in the order in which one process adds them up.

        Args:
            num_relations, merge, ends, dtype, distinct: Those of
                :func:`~sheafprop.kernels.build_fact_csr.build_fact_csr`.
        """
        n, free = len(self.owned), self.num_free
        numbers = torch.zeros(len(self._key), dtype=torch.long)
        vertices = torch.cat([torch.arange(free), n + torch.arange(self.num_halo)])
        order = torch.argsort(self._key[vertices], stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        # Sources in the order of one process; halo vertices receive messages that are dropped.
        numbers[vertices] = place
        numbers[self._known] = len(vertices) + torch.arange(len(self._known))
        number = numbers.numpy()
        (head, tail), kind = self.edge_index.numpy(), self.edge_type.numpy()
        weight = self.edge_weight
        if weight is not None and bool((weight == 1).all()):
            weight = None
        values = None if weight is None else weight.to(dtype).numpy()

        def chunks() -> Iterator[TripleChunk]:
            for start in range(0, len(kind), _CHUNK):
                some = slice(start, start + _CHUNK)
                of = None if values is None else values[some]
                yield TripleChunk(number[head[some]], kind[some], number[tail[some]], of)

        whole = build_fact_csr(
            chunks,
            len(vertices),
            len(self._known),
            num_relations,
            merge=merge,
            ends=ends,
            weighted=values is not None,
            distinct=distinct,
            dtype=dtype,
        )
        return whole.share(place[:free], order)

    def numbered_ends(self) -> tuple[Tensor, Tensor, int]:
        """Heads and tails, numbered owned free entities first, then the halo, then known ones, and
        the number of these."""
        number = torch.zeros(len(self._key), dtype=torch.long)
        number[: self.num_free] = torch.arange(self.num_free)
        n, free, halo = len(self.owned), self.num_free, self.num_halo
        number[n : n + halo] = free + torch.arange(halo)
        number[self._known] = free + halo + torch.arange(len(self._known))
        head, tail = number.to(self.edge_index.device)[self.edge_index]
        return head, tail, len(self._known)

    def known_place(self) -> Tensor:
        """Where the known sources lie among owned known entities and those fetched behind them."""
        n, free, halo = len(self.owned), self.num_free, self.num_halo
        place = torch.where(self._known < n, self._known - free, self._known - halo - free)
        return place.to(self.owned.device)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rank={self.ranks.rank}, owned={len(self.owned)}, "
            f"free={self.num_free}, halo={self.num_halo}, triples={len(self.edge_type)})"
        )
