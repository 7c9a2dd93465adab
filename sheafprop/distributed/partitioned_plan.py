from functools import cached_property

import torch
from torch import Tensor

from sheafprop.distributed.halo_coupling import HaloCoupling, KnownCoupling
from sheafprop.distributed.partitioned_graph import PartitionedGraph
from sheafprop.kernels.backend import leave_inference_mode
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.sheaf.graph_checks import GraphInput
from sheafprop.sheaf.plan import Normalization, PropagationPlan, check_normalization, working_dtype
from sheafprop.sheaf.plan_inputs import PlanInputs
from sheafprop.sheaf.relation_sheaf import RelationSheaf
from sheafprop.sheaf.row_plan import can_count_rows, check_takes_rows, needs_labels


class PartitionedPlan(PropagationPlan):
    """The precomputed part of a step where processes share the graph.

    Layers take it as ``plan`` beside the vectors of the entities that this rank owns, in the order
    of :attr:`PartitionedGraph.owned`, and compute those of one process: bit for bit where the maps
    are the identity or diagonal and numba's loops run, else up to rounding. All ranks call them
    together. Sums over free vertices are added up over the ranks. There are no gradients.

    Args:
        graph (PartitionedGraph): This rank's share.
        sheaf (RelationSheaf): Maps and translations, the same on all ranks.
        normalization, dtype: Those of :class:`~sheafprop.sheaf.PropagationPlan`.
        columns (slice): The columns of the features, for maps that act on each by itself.
            (default: all)
        rows (FactCSR, optional): What :meth:`PartitionedGraph.rows` gives, if it is there.

    Raises:
        ValueError: If the maps want gradients, or mix the columns of which some are asked for.
    """

    is_whole = False

    @leave_inference_mode()
    def __init__(
        self,
        graph: PartitionedGraph,
        sheaf: RelationSheaf,
        *,
        normalization: Normalization = "block",
        dtype: torch.dtype | None = None,
        columns: slice = slice(None),
        rows: FactCSR | None = None,
    ):
        check_normalization(normalization)
        if torch.is_grad_enabled() and any(t.requires_grad for t in sheaf.tensors().values()):
            raise ValueError(
                "no gradients lead through processes that share a graph: detach the maps, or "
                "build the plan under torch.no_grad()"
            )
        sheaf = sheaf.map_tensors(lambda tensor: tensor.detach())
        self.graph, self.sheaf, self.normalization = graph, sheaf, normalization
        self.num_nodes, self.num_free = len(graph.owned), graph.num_free
        self.boundary_mask = graph.boundary_mask
        every = torch.arange(self.num_nodes, device=graph.owned.device)
        self.free_index, self._source_index = every[: self.num_free], every[self.num_free :]
        given = GraphInput(*graph.edges, sheaf, graph.edge_weight, self.boundary_mask)
        self.inputs = PlanInputs(given)
        dtype = working_dtype(dtype or sheaf.dtype or torch.get_default_dtype(), sheaf)
        self.dtype = dtype
        sheaf = sheaf.promote(dtype)
        self._boundary_coupling = self._preconditioner = None
        if rows is None and can_count_rows(given._replace(sheaf=sheaf)):
            rows = graph.rows(
                sheaf.num_relations,
                merge=sheaf.is_constant,
                ends=needs_labels(sheaf, normalization),
                dtype=dtype.to_real(),
            )
        if rows is not None:
            check_takes_rows(sheaf)
            self._take_rows(rows, sheaf, columns)
        else:
            if columns != slice(None):
                check_takes_rows(sheaf)
                raise ValueError("columns are run one by one by numba's loops alone")
            head, tail, num_known = graph.numbered_ends()
            _, _, edge_type, weight = self.edges
            self._take_ends(sheaf, head, tail, edge_type, weight, num_known, graph.num_halo)
        known = self._boundary_coupling
        if known is not None or not graph.known_exchange.is_empty:
            self._boundary_coupling = KnownCoupling(
                known, graph.known_exchange, graph.known_place(), self.num_free
            )
        if not graph.exchange.is_empty:
            self._free_coupling = HaloCoupling(
                self._free_coupling, graph.exchange, graph.num_interior
            )

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Heads, tails, relations and weights of the triples that touch an owned free entity,
        ``[m]``, numbered as by :attr:`PartitionedGraph.edges`."""
        graph, real = self.graph, self.dtype.to_real()
        weight = graph.edge_weight
        if weight is None:
            weight = torch.ones(len(graph.edge_type), dtype=real, device=graph.owned.device)
        return (*graph.edge_index, graph.edge_type, weight.to(real))

    @cached_property
    def isolated(self) -> Tensor:
        """Bool ``[n]``: owned free entities that no edge of positive weight touches."""
        head, tail, _, weight = self.edges
        touched = torch.zeros(self.num_free, dtype=torch.bool, device=head.device)
        for end in (head, tail):
            end = end[weight > 0]
            touched[end[end < self.num_free]] = True
        return ~touched

    @property
    def components_without_boundary(self) -> int:
        """Not known: components reach over several processes.

        Raises:
            ValueError: Always.
        """
        raise ValueError("processes that share a graph do not know its components")

    def total(self, values: Tensor) -> Tensor:
        """Adds up ``values``, sums over owned free entities, over all ranks."""
        return self.graph.ranks.all_reduce(values.clone())

    def largest(self, value: float) -> float:
        """The largest ``value`` of all ranks."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.graph.ranks.device)
        return float(self.graph.ranks.all_reduce(tensor, "max"))
