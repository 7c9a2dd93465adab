"""Propagation of a model's vectors by processes that share a graph, each with a part of it.

Every process leaves the vectors of its own entities in files of the work folder, block by block of
columns; the first one brings them into rows at the end. Blocks that all processes have finished are
not computed again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import agree, count_noun, quote
from sheafprop.distributed.partitioned_graph import PartitionedGraph
from sheafprop.distributed.partitioned_plan import PartitionedPlan
from sheafprop.distributed.ranks import Ranks
from sheafprop.errors import DataError, UnknownRelationError
from sheafprop.files import storage_errors
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.pretrained.mapped.column_table import Block, ColumnTable, split_columns
from sheafprop.pretrained.mapped.cost_estimate import CostEstimate, show_bytes
from sheafprop.pretrained.mapped.job_record import (
    JobRecord,
    checksum,
    clear_work,
    run_unhurried,
    work_folder,
)
from sheafprop.pretrained.mapped.part_folder import RECORD, read_part, read_parts
from sheafprop.pretrained.mapped.propagation_job import (
    Job,
    NamedRows,
    PropagationInput,
    start_rows,
    weight_relations,
)
from sheafprop.pretrained.mapped.vector_folder import check_vector_target
from sheafprop.pretrained.model_state import ModelState
from sheafprop.progress import progress_bar

# Labels that are looked up together.
_LABELS = 2**18


@dataclass(frozen=True, eq=False)
class _Entities:
    """What a rank knows of its entities: places in the part of new and of known ones that it owns,
    in the order of their rows, and the model's ids of all (-1 for new ones)."""

    graph: PartitionedGraph
    ids: np.ndarray
    new: np.ndarray
    known: np.ndarray


class PartitionedJob(Job):
    """Carries a model's vectors to new entities by ranks that own a part of the graph each.

    The vectors are those of :class:`PropagationJob`. The work folder ``.OUT.partial`` and the
    folder that is asked for must be seen by all ranks.

    Args:
        state, out, memory: Those of :class:`Job`, which also takes the other options.
        given (PropagationInput): Settings; its facts are the record of the parts.
        parts (Path): A folder of ``sheafprop partition``.
        ranks (Ranks): The processes, one for each part.

    Raises:
        DataError: If parts, model and ranks do not go together.
    """

    def __init__(
        self,
        state: ModelState,
        given: PropagationInput,
        parts: Path,
        out: Path,
        memory: int,
        ranks: Ranks,
        **options: Any,
    ):
        super().__init__(state, given, out, memory, ranks, **options)
        self._about = read_parts(parts)
        if self._about["num_parts"] != ranks.size:
            raise DataError(
                f"'{parts}' has {count_noun(self._about['num_parts'], 'part')} (got "
                f"{count_noun(ranks.size, 'rank')}): start as many processes by torchrun, or "
                f"make the parts anew by 'sheafprop partition --parts {ranks.size}'"
            )
        self._parts, self._own = parts, self._work / f"rank-{ranks.rank:05d}"

    def estimate(self) -> str:
        """What a process will take, in words; the same on all ranks."""
        self._ranks.run_together(self._look_up)
        return self._describe(self._estimate())

    def run(self, on_estimate: Callable[[str], None] = lambda text: None) -> Path:
        """Does everything that is not done, and returns the folder of the vectors.

        Raises:
            DataError: If an input was changed since the work began, or the facts do not do.
            StorageError: If the disk is full; the next call goes on.
            RankError: If another rank could not go on.
        """
        ranks = self._ranks
        ranks.run_together(lambda: check_vector_target(self._out, self._overwrite))
        with work_folder(self._work, ranks, restart=self._restart), torch.no_grad():
            ranks.run_together(self._look_up)
            blocks = self._estimate()
            on_estimate(self._describe(blocks))
            ranks.run_together(lambda: self._begin(blocks))
            self._propagate(blocks)
            ranks.run_together(self._record.check_inputs)
            self._write_reached()
            finish = (lambda: self._finish(blocks)) if ranks.is_first else None
            run_unhurried(ranks, self._work, finish)
            if ranks.is_first:
                clear_work(self._work)
                self._work.rmdir()
        return self._out

    # Records --------------------------------------------------------------------------------------

    def _begin(self, blocks: list[Block]) -> None:
        """Takes up this rank's record of an earlier run, if it is of the same work."""
        given = self._given
        wanted = {
            "settings": given.settings.to_dict(),
            "on_unknown_relation": given.on_unknown_relation,
            "parts": self._ranks.size,
            "columns": [[*_ends(b.sections), *_ends(b.columns)] for b in blocks],
        }
        with storage_errors(self._own, "written"):
            self._own.mkdir(parents=True, exist_ok=True)
        self._record = JobRecord.take_up(self._own, wanted, [self._parts / RECORD, given.model])
        self._record.content["blocks"] = wanted["columns"]
        self._record.save()

    def _is_done(self, k: int) -> bool:
        """Whether this rank has the result of a block, unharmed."""
        done = self._record.content["done"].get(str(k))
        path = self._table.path(k)
        return done is not None and path.is_file() and checksum(path) == done

    # Stages ---------------------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Checks relations, and finds the entities of this part in the model."""
        settings, state = self._given.settings, self._state
        self._part = part = read_part(self._parts, self._ranks.rank)
        labels: list[str] = self._about["relations"]
        relation = state.relations.lookup(labels).numpy()
        unknown = [label for label, found in zip(labels, relation, strict=True) if found < 0]
        if unknown and (self._given.on_unknown_relation == "error" or len(unknown) == len(labels)):
            named = ", ".join(
                quote(label) + state.relations.suggestion(label) for label in unknown[:5]
            )
            raise UnknownRelationError(
                f"{count_noun(len(unknown), 'relation')} {agree(len(unknown), 'is', 'are')} "
                f"unknown to the model, so it has no maps: {named}; drop their facts by "
                "--on-unknown-relation drop"
            )
        self._facts = part.facts if not unknown else part.facts[relation[part.facts[:, 1]] >= 0]
        self._kind = relation[self._facts[:, 1]]
        self._ids = np.empty(len(part.labels), np.int64)
        for start in range(0, len(self._ids), _LABELS):
            some = np.arange(start, min(start + _LABELS, len(self._ids)))
            self._ids[some] = state.index.lookup(part.labels.labels(some)).numpy()
        # Entities of nothing but dropped facts are not there.
        self._is_met = np.zeros(len(self._ids), bool)
        self._is_met[self._facts[:, [0, 2]]] = True
        weight = weight_relations(state, settings)
        self._weight = None if weight is None else torch.from_numpy(weight)[self._kind]

    @cached_property
    def _entities(self) -> _Entities:
        part, ids, n = self._part, self._ids, len(self._part.owned)
        kept = np.flatnonzero(self._is_met)
        number = np.zeros(len(ids), np.int64)
        number[kept] = np.arange(len(kept))
        every = np.concatenate([part.owned, part.remote]).astype(np.int64)
        # One process has new entities in the order of the facts, known ones in the model's.
        key = np.where(ids >= 0, ids, every)[kept]
        owned, remote = kept[kept < n], kept[kept >= n]
        graph = PartitionedGraph(
            self._ranks,
            owned=torch.from_numpy(every[owned]),
            remote=torch.from_numpy(every[remote]),
            owner=torch.from_numpy(part.owner[remote - n].astype(np.int64)),
            edge_index=torch.from_numpy(number[self._facts[:, [0, 2]].T]),
            edge_type=torch.from_numpy(self._kind),
            edge_weight=self._weight,
            boundary_mask=torch.from_numpy(ids[kept] >= 0),
            key=torch.from_numpy(key),
        )
        places = np.searchsorted(part.owned, graph.owned.numpy())
        free = graph.num_free
        return _Entities(graph, ids, places[:free], places[free:])

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Counts of all ranks together."""
        graph = self._entities.graph
        mine = self._facts[:, 0] < len(self._part.owned)  # a fact belongs to its head's owner
        counts = [graph.num_free, int(mine.sum()), len(graph.owned) - graph.num_free]
        total = self._ranks.all_reduce(torch.tensor(counts)).tolist()
        return dict(zip(("new_entities", "facts", "known_entities"), total, strict=True))

    @cached_property
    def _rows(self) -> FactCSR:
        """The messages into new entities of this part; their labels serve the start."""
        return self._entities.graph.rows(
            self._sheaf.num_relations,
            merge=self._sheaf.is_constant,
            ends=True,
            dtype=self._dtype.to_real(),
        )

    @property
    def _table(self) -> ColumnTable:
        return ColumnTable(self._own, "result", self._entities.graph.num_free, [], self._dtype)

    def _estimate(self) -> list[Block]:
        """Blocks of columns that fit into the memory of every rank."""
        settings, sheaf, graph = self._given.settings, self._sheaf, self._entities.graph
        if not self._sizes["new_entities"]:
            raise DataError(
                "there is nothing to propagate to: the model has a vector for every entity of "
                "these facts"
            )
        _ = self._rows  # in memory, so that it counts as held
        width, sections = self._width, settings.num_sections
        self._costs = problem = self._problem(
            facts=len(self._facts),
            num_free=graph.num_free + graph.num_halo,
            num_known=len(graph.owned) - graph.num_free,
            entry_bytes=6,
            has_constant=True,
        )
        found = self._ranks.run_together(
            lambda: CostEstimate.of(problem, self._memory, torch.get_num_threads())
        )
        widest = max(s * c for s, c in (block.shape for block in found.blocks))
        most = int(self._ranks.all_reduce(torch.tensor(widest), "min"))
        if not sheaf.takes_rows:
            # Maps that mix columns take sections as a whole.
            most = max(most // width, 1) * width
        return split_columns(sections, width, most, sheaf.algebra.block)

    def _describe(self, blocks: list[Block]) -> str:
        graph, sizes = self._entities.graph, self._sizes
        found = CostEstimate.of_blocks(self._costs, blocks, torch.get_num_threads())
        row = self._costs.num_sections * self._width * self._dtype.itemsize
        most = torch.tensor([found.memory, row * graph.num_halo])
        memory, received = self._ranks.all_reduce(most, "max").tolist()
        return (
            f"{sizes['facts']:,} facts, {sizes['new_entities']:,} new and "
            f"{sizes['known_entities']:,} known entities in "
            f"{count_noun(self._ranks.size, 'part')}, {count_noun(len(blocks), 'block')} of "
            "columns\n"
            f"estimated for a process: memory {show_bytes(memory)}, "
            f"received {show_bytes(received)} a step ({self._costs.iterations} steps)"
        )

    def _propagate(self, blocks: list[Block]) -> None:
        settings, ranks, graph = self._given.settings, self._ranks, self._entities.graph
        layer = self._layer()
        order = torch.argsort(graph.owned[: graph.num_free])
        steps, every = max(1, settings.iterations), slice(0, self._width)
        with progress_bar(
            len(blocks) * steps, desc="propagation", shown=self._shown, unit="step"
        ) as bar:
            for k, block in enumerate(blocks):
                done = torch.tensor(int(self._is_done(k)))
                if int(ranks.all_reduce(done, "min")):
                    bar.update(steps)
                    continue
                plan = PartitionedPlan(
                    graph,
                    self._sheaf,
                    normalization=settings.normalization,
                    dtype=self._dtype,
                    columns=slice(None) if block.columns == every else block.columns,
                    rows=self._rows if self._sheaf.takes_rows else None,
                )

                def known(block: Block = block) -> Tensor:
                    return self._known(block)

                def advance(count: int, k: int = k) -> None:
                    bar.update(k * steps + count - bar.n)

                x = layer.run_free(
                    plan, self._start(block), columns=block.columns, known=known, on_step=advance
                )
                table = ColumnTable(self._own, "result", len(x), blocks, self._dtype)
                # In the order of the facts, in which the first rank reads them.
                self._record.content["done"][str(k)] = table.write_block(k, x[order])
                self._record.save()
                del x

    def _start(self, block: Block) -> Tensor:
        """The start of owned new entities in some columns."""
        places, rows = self._entities.new, self._rows
        out = torch.empty(len(places), *block.shape, dtype=self._dtype)
        for first, last in self._pieces(len(places)):
            keys = self._part.labels.keys(places[first:last])
            ends = rows.part(first, last)
            values = start_rows(self._state, self._given.settings, keys, ends, self._dtype)
            out[first:last] = values[:, block.sections, block.columns]
        return out

    def _known(self, block: Block) -> Tensor:
        ids = torch.from_numpy(self._ids[self._entities.known])
        sections = self._given.settings.num_sections
        rows = self._state.rows.select(ids).detach().expand(-1, sections, -1)
        return rows[:, block.sections, block.columns].to(self._dtype)

    def _write_reached(self) -> None:
        """Numbers of owned new entities, and whether facts lead to them from one with an anchor."""
        graph, rows, ranks = self._entities.graph, self._rows, self._ranks
        ids = torch.from_numpy(self._ids)
        anchors = (ids >= 0) & ~self._state.are_unanchored(ids)
        every = np.concatenate([self._part.owned, self._part.remote])
        place = np.argsort(every)
        met = np.searchsorted(every, graph.known_sources.numpy(), sorter=place)
        is_anchor = anchors[torch.from_numpy(place[met])]
        reached = torch.zeros(graph.num_free + graph.num_halo, dtype=torch.bool)
        count = -1
        while True:
            rows.reached_from(is_anchor, reached)
            found = int(ranks.all_reduce(reached[: graph.num_free].sum()))
            if found == count:
                break
            count = found
            marks = reached.to(torch.uint8).unsqueeze(1)
            graph.exchange.run(marks)
            reached[graph.num_free :] = marks[graph.num_free :, 0].bool()
        numbers = graph.owned[: graph.num_free]
        order = torch.argsort(numbers)

        def write() -> None:
            with storage_errors(self._own, "written"):
                found = torch.stack([numbers, reached[: graph.num_free].long()])[:, order]
                np.save(self._own / "new.npy", found.numpy())

        ranks.run_together(write)

    def _finish(self, blocks: list[Block]) -> None:
        """Brings the results of all ranks into rows, in the order of the facts."""
        with ExitStack() as stack:
            parts = [read_part(self._parts, rank) for rank in range(self._ranks.size)]
            folders = [self._work / f"rank-{rank:05d}" for rank in range(self._ranks.size)]
            found = [np.load(folder / "new.npy") for folder in folders]
            tables = [
                ColumnTable(folder, "result", new.shape[1], blocks, self._dtype)
                for folder, new in zip(folders, found, strict=True)
            ]
            readers = [stack.enter_context(table.open_rows()) for table in tables]

            def pieces() -> Iterator[NamedRows]:
                begin = [0] * len(parts)
                for _, last in self._pieces(self._about["entities"]):
                    vectors, numbers, labels, reached = [], [], [], []
                    for rank, (numbered, marks) in enumerate(found):
                        a = begin[rank]
                        b = begin[rank] = int(np.searchsorted(numbered, last))
                        vectors.append(readers[rank].next(b - a))
                        numbers.append(numbered[a:b])
                        reached.append(marks[a:b].astype(bool))
                        places = np.searchsorted(parts[rank].owned, numbered[a:b])
                        labels += parts[rank].labels.labels(places)
                    order = np.argsort(np.concatenate(numbers))
                    x = torch.cat(vectors)[torch.from_numpy(order)]
                    yield x, [labels[i] for i in order], np.concatenate(reached)[order]

            size = self._sizes["new_entities"]
            self._write(pieces(), size, **self._sizes, parts=self._ranks.size)


def _ends(part: slice) -> tuple[int, int]:
    return part.start, part.stop
