"""Propagation of a model's vectors to the new entities of large files of facts, by stages.

Every stage leaves files that the next process finds, and a record that is written after them:
facts in ids, the messages in rows, known vectors and the start in columns, the result of each block
of columns. What is not recorded is made again; the folder that is asked for appears at the end.

Long because the stages of a job, and what each leaves for the next, stand together.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafprop.checks import check_choice
from sheafprop.distributed.ranks import Ranks
from sheafprop.errors import DataError, FormatError
from sheafprop.files import StorageError
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.kernels.build_fact_csr import build_fact_csr
from sheafprop.kernels.fact_csr import FactCSR
from sheafprop.kernels.rows import scale_rows
from sheafprop.nn.relation_weights import relation_weights
from sheafprop.nn.sheaf_propagation import LEAP, SheafPropagation
from sheafprop.nn.start import start_values
from sheafprop.pretrained.mapped.array_folder import ArrayFolder, load_rows, save_rows
from sheafprop.pretrained.mapped.column_table import Block, ColumnTable
from sheafprop.pretrained.mapped.cost_estimate import CostEstimate, Problem
from sheafprop.pretrained.mapped.fact_ids import FactIds, read_fact_ids, write_fact_ids
from sheafprop.pretrained.mapped.job_record import (
    JobRecord,
    checksum,
    clear_work,
    run_unhurried,
    work_folder,
)
from sheafprop.pretrained.mapped.vector_folder import check_vector_target, write_vector_folder
from sheafprop.pretrained.model_state import ModelState
from sheafprop.progress import progress_bar
from sheafprop.sheaf.plan import working_dtype
from sheafprop.sheaf.row_plan import needs_labels

#: Numbers of rows that are drawn or copied together.
NUMBERS = 2**20
#: Vectors, labels, and whether a known entity is reached.
NamedRows = tuple[Tensor, list[str], np.ndarray]


@dataclass(frozen=True)
class PropagationInput:
    """What a propagation from files depends on.

    Args:
        facts (sequence of Path): Files of facts.
        model (Path): The manifest of the model folder.
        options (dict): How the files are read, as plain values.
        settings (PropagationSettings): How to propagate.
        on_unknown_relation (str): ``"error"`` or ``"drop"``.
    """

    facts: Sequence[Path]
    model: Path
    options: dict[str, Any]
    settings: PropagationSettings
    on_unknown_relation: str = "error"


class Job:
    """What jobs that go on where they were stopped have in common.

    Work is kept in ``.OUT.partial`` beside the folder that is asked for.

    Args:
        state (ModelState): The model.
        given (PropagationInput): Files and settings.
        out (Path): The folder to write.
        memory (int): Bytes that a process may take.
        ranks (Ranks): The processes.
        restart (bool): Whether to drop what an earlier process left.
        overwrite (bool): Whether ``out`` may be replaced.
        shown (bool): Whether progress is shown.
    """

    def __init__(
        self,
        state: ModelState,
        given: PropagationInput,
        out: Path,
        memory: int,
        ranks: Ranks,
        *,
        restart: bool = False,
        overwrite: bool = False,
        shown: bool = True,
    ):
        check_input(state, given)
        self._state, self._given, self._sheaf = state, given, state.trained.sheaf
        self._out, self._memory, self._ranks = Path(os.path.realpath(out)), memory, ranks
        self._restart, self._overwrite = restart, overwrite
        self._shown = shown and ranks.is_first
        self._work = self._out.with_name(f".{self._out.name}.partial")
        self._dtype = working_dtype(state.rows.blocks[0].dtype, self._sheaf)
        self._width = int(state.kge.hidden_channels)

    def _problem(self, **sizes: Any) -> Problem:
        """The problem of some ``sizes``, and all that settings and maps say of it."""
        settings, sheaf = self._given.settings, self._sheaf
        kind = "complex" if self._dtype.is_complex else "real"
        return Problem(
            num_sections=settings.num_sections,
            width=self._width,
            itemsize=self._dtype.itemsize,
            kind="identity" if sheaf.is_constant else kind,
            iterations=settings.iterations,
            unit=sheaf.algebra.block,
            keeps_start=settings.teleport > 0,
            leaps=settings.iterations >= LEAP,
            has_diagonal=not sheaf.is_constant and needs_labels(sheaf, settings.normalization),
            **sizes,
        )

    def _layer(self) -> SheafPropagation:
        settings = self._given.settings
        return SheafPropagation(
            settings.iterations,
            step_size=settings.step_size,
            normalization=settings.normalization,
            teleport=settings.teleport,
        )

    def _pieces(self, size: int) -> Iterator[tuple[int, int]]:
        """Bounds of rows that are drawn or copied together."""
        step = max(1, NUMBERS // (self._given.settings.num_sections * self._width))
        for start in range(0, size, step):
            yield start, min(start + step, size)

    def _write(self, pieces: Iterator[NamedRows], size: int, **counts: Any) -> None:
        """Writes the folder that is asked for, from vectors before they are scaled."""
        settings, kge = self._given.settings, self._state.kge
        length = kge.trained_length() if settings.normalize_output else None
        write_vector_folder(
            self._out,
            (
                (x if length is None else scale_rows(x, length), labels, reached)
                for x, labels, reached in pieces
            ),
            shape=(size, settings.num_sections, self._width),
            dtype=self._dtype,
            about={
                "model": str(self._given.model.parent),
                "settings": settings.to_dict(),
                "section_weight": list(settings.section_weight),
                **counts,
            },
            overwrite=self._overwrite,
            work=self._work,
        )


class PropagationJob(Job):
    """Carries a model's vectors to new entities through files, and goes on where it was stopped.

    The vectors are those of :meth:`SheafModel.extend` with the same settings.

    Args:
        state, given, out, memory: Those of :class:`Job`, which also takes the other options.
        ranks (Ranks, optional): Processes that share the columns; they must see the folder. What
            comes before and after is done by the first one. (default: one process)
    """

    def __init__(
        self,
        state: ModelState,
        given: PropagationInput,
        out: Path,
        memory: int,
        *,
        ranks: Ranks | None = None,
        **options: Any,
    ):
        if not state.trained.sheaf.takes_rows:
            raise DataError(
                f"'propagate' needs a model whose maps act on every column by itself, such as "
                f"transe, rotate or su2e (got {state.kge.name!r}, whose maps mix them): "
                "'sheafprop extend --propagation selected' takes any model"
            )
        super().__init__(state, given, out, memory, ranks or Ranks.alone(), **options)

    # Steps that a command takes ------------------------------------------------------------------

    def estimate(self) -> CostEstimate | None:
        """Reads the facts, and says what the rest will take; only on the first rank."""

        def estimate() -> CostEstimate:
            self._begin()
            return self._estimate()

        with work_folder(self._work, self._ranks, restart=self._restart):
            found = run_unhurried(
                self._ranks, self._work, estimate if self._ranks.is_first else None
            )
            return found[0]

    def run(self, on_estimate: Callable[[CostEstimate], None] = lambda found: None) -> Path:
        """Does everything that is not done, and returns the folder of the vectors.

        Args:
            on_estimate (callable): Called with the estimate before anything large is written.

        Raises:
            DataError: If an input was changed since the work began, or the facts do not do.
            FormatError: If a file of the work was cut; the next call makes it again.
            StorageError: If the disk is full; the next call goes on.
        """
        ranks = self._ranks
        with work_folder(self._work, ranks, restart=self._restart), torch.no_grad():
            self._run_on_first(lambda: self._prepare(on_estimate))
            if not ranks.is_first:
                self._begin()
            self._propagate(self._rows())
            self._run_on_first(self._finish)
            if ranks.is_first:
                clear_work(self._work)
                self._work.rmdir()
        return self._out

    def _run_on_first(self, work: Callable[[], None]) -> None:
        run_unhurried(self._ranks, self._work, work if self._ranks.is_first else None)

    def _prepare(self, on_estimate: Callable[[CostEstimate], None]) -> None:
        check_vector_target(self._out, self._overwrite)
        self._begin()
        found = self._estimate()
        on_estimate(found)
        self._check_disk(found)
        self._record.content["blocks"] = [_plain(block) for block in found.blocks]
        self._record.save()
        self._write_start(self._rows())

    # Records -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Takes up the record of an earlier process, if it is of the same work."""
        given = self._given
        wanted = {
            "settings": given.settings.to_dict(),
            "options": {k: v if v is None else str(v) for k, v in given.options.items()},
            "on_unknown_relation": given.on_unknown_relation,
            "facts": [str(path) for path in given.facts],
        }
        self._record = JobRecord.take_up(self._work, wanted, [*given.facts, given.model])
        if self._record.is_new and self._ranks.is_first:
            # What is there is of other work, or of work whose folder was being removed.
            for name in ("facts", "rows"):
                ArrayFolder(self._work / name).clear()
            self._record.save()

    def _save(self) -> None:
        if self._ranks.is_first:
            self._record.save()

    # Stages --------------------------------------------------------------------------------------

    @cached_property
    def _facts(self) -> FactIds:
        folder = ArrayFolder(self._work / "facts")
        found = read_fact_ids(folder)
        if found is not None:
            return found
        given = self._given
        size = sum(path.stat().st_size for path in given.facts)
        with progress_bar(size, desc="facts", shown=self._shown, unit="B") as bar:
            return write_fact_ids(
                folder,
                given.facts,
                self._state,
                on_unknown_relation=given.on_unknown_relation,
                options=given.options,
                on_read=lambda count: bar.update(min(count, size - bar.n)),
            )

    @cached_property
    def _weight(self) -> np.ndarray | None:
        """The weight of each relation; None where all are one."""
        return weight_relations(self._state, self._given.settings)

    @property
    def _needs_labels(self) -> bool:
        settings = self._given.settings
        return uses_prototypes(settings) or needs_labels(self._sheaf, settings.normalization)

    def _estimate(self) -> CostEstimate:
        facts, sheaf = self._facts, self._sheaf
        small_labels = 2 * sheaf.num_relations <= 2**15
        problem = self._problem(
            facts=facts.num_facts,
            num_free=len(facts.new),
            num_known=len(facts.known),
            entry_bytes=(6 if small_labels else 8) + (4 if self._weight is not None else 0),
            has_constant=bool(len(facts.known)) or sheaf.end_translations() is not None,
        )
        threads = torch.get_num_threads()
        if (chosen := self._record.content.get("blocks")) is None:
            return CostEstimate.of(problem, self._memory, threads, self._ranks.size)
        found = CostEstimate.of_blocks(problem, [_block(b) for b in chosen], threads)
        if found.memory > self._memory:
            raise DataError(
                f"'{self._work}' holds blocks of columns for more memory: give --memory "
                f"{-(-found.memory // 10**6)}MB or more, or --restart to begin again"
            )
        return found

    def _check_disk(self, found: CostEstimate) -> None:
        """Refuses a disk that what is left to write does not fit on."""
        free = shutil.disk_usage(self._work).free
        held = sum(p.stat().st_blocks * 512 for p in self._work.rglob("*") if p.is_file())
        if found.disk > free + held:
            raise StorageError(
                f"'{self._out}' cannot be written: about {found.disk / 1e9:.1f} GB are needed on "
                f"the disk (free: {(free + held) / 1e9:.1f} GB). Free some space or choose a "
                "folder on another disk"
            )

    def _rows(self) -> FactCSR:
        folder, facts = ArrayFolder(self._work / "rows"), self._facts
        if folder.facts() is None:
            folder.clear()
            rows = build_fact_csr(
                lambda: facts.chunks(self._weight),
                len(facts.new),
                len(facts.known),
                self._sheaf.num_relations,
                merge=self._sheaf.is_constant,
                ends=self._needs_labels,
                weighted=self._weight is not None,
                distinct=True,
                dtype=self._dtype.to_real(),
                allocate=folder.make,
            )
            save_rows(folder, rows)
            del rows
        sizes = len(facts.new), len(facts.known), self._sheaf.num_relations
        return load_rows(folder, *sizes)

    @cached_property
    def _tables(self) -> dict[str, ColumnTable]:
        blocks = [_block(plain) for plain in self._record.content["blocks"]]
        sizes = {"start": len(self._facts.new), "known": len(self._facts.known)}
        sizes["result"] = sizes["start"]
        return {
            name: ColumnTable(self._work / name, name, size, blocks, self._dtype)
            for name, size in sizes.items()
        }

    @property
    def _done(self) -> dict[str, Any]:
        return self._record.content["done"]

    def _left(self) -> list[int]:
        """Blocks without a result. One that was cut or changed is forgotten, with an error."""
        table, results = self._tables["result"], self._done.setdefault("result", {})
        for k in sorted(map(int, results)):
            try:
                table.check(k)
                if checksum(table.path(k)) != results[str(k)]:
                    raise FormatError(
                        f"'{table.path(k)}' was changed: it is made again by the same command"
                    )
            except FormatError:
                del results[str(k)]
                self._save()
                raise
        return [k for k in range(len(table.blocks)) if str(k) not in results]

    def _write_start(self, rows: FactCSR) -> None:
        """Known vectors and the start in columns, for the blocks that are left."""
        left = self._left()
        names = ("start", "known") if len(self._facts.known) else ("start",)
        for name in names:
            table, done = self._tables[name], self._done.setdefault(name, [])
            for k in set(left) & set(done):
                try:
                    table.check(k)
                except FormatError:
                    done.remove(k)
                    self._record.save()
                    raise
            missing = [k for k in left if k not in done]
            if not missing:
                continue
            pieces = self._start_rows(rows) if name == "start" else self._known_rows()
            size = table.num_rows
            with progress_bar(size, desc=name, shown=self._shown, unit="row") as bar:

                def counted(pieces: Iterator[Tensor] = pieces, bar: Any = bar) -> Iterator[Tensor]:
                    for piece in pieces:
                        yield piece
                        bar.update(len(piece))

                table.write_rows(missing, counted())
            self._done[name] = sorted({*done, *missing})
            self._record.save()

    def _known_rows(self) -> Iterator[Tensor]:
        sections = self._given.settings.num_sections
        ids = torch.from_numpy(self._facts.known)
        for start, stop in self._pieces(len(ids)):
            rows = self._state.rows.select(ids[start:stop]).detach()
            yield rows.expand(-1, sections, -1)

    def _start_rows(self, rows: FactCSR) -> Iterator[Tensor]:
        for start, stop in self._pieces(rows.num_free):
            keys, ends = self._facts.new_keys(start, stop), rows.part(start, stop)
            yield start_rows(self._state, self._given.settings, keys, ends, self._dtype)

    def _propagate(self, rows: FactCSR) -> None:
        settings, tables = self._given.settings, self._tables
        layer, ranks = self._layer(), self._ranks
        left, size = ranks.run_together(self._left), len(tables["result"].blocks)
        total, steps = size * max(1, settings.iterations), max(1, settings.iterations)
        with progress_bar(
            total,
            desc="propagation",
            shown=self._shown,
            unit="step",
            initial=(size - len(left)) * steps,
        ) as bar:
            for first in range(0, len(left), ranks.size):
                begin = (size - len(left) + first) * steps
                # A block for each rank.
                mine = left[first:][ranks.rank : ranks.rank + 1]

                def advance(done: int, begin: int = begin) -> None:
                    bar.update(begin + done - bar.n)

                def propagate(mine: list[int] = mine, advance: Any = advance) -> dict[int, int]:
                    return {k: self._run_block(layer, rows, k, advance) for k in mine}

                for found in run_unhurried(ranks, self._work, propagate):
                    for k, value in (found or {}).items():
                        self._done["result"][str(k)] = value
                        self._done["start"].remove(k)
                        self._save()
                        if ranks.is_first:
                            tables["start"].remove(k)
                advance(steps * len(left[first : first + ranks.size]))

    def _run_block(
        self, layer: SheafPropagation, rows: FactCSR, k: int, on_step: Callable[[int], None]
    ) -> int:
        """Propagates a block, writes its result and returns the CRC-32 of that."""
        tables = self._tables
        x = layer.run_columns(
            rows,
            self._sheaf,
            tables["start"].read_block(k),
            columns=tables["start"].blocks[k].columns,
            known=lambda: tables["known"].read_block(k),
            on_step=on_step,
        )
        return tables["result"].write_block(k, x)

    def _finish(self) -> None:
        self._record.check_inputs()
        facts, reached = self._facts, self._reached(self._rows())

        def pieces() -> Iterator[NamedRows]:
            with self._tables["result"].open_rows() as reader:
                for start, stop in self._pieces(len(facts.new)):
                    x = reader.next(stop - start)
                    yield x, facts.new_labels(start, stop), reached[start:stop]

        self._write(pieces(), len(facts.new), **facts.counts)

    def _reached(self, rows: FactCSR) -> np.ndarray:
        """New entities that facts lead to from a known one with an anchor, bool ``[n]``."""
        known = torch.from_numpy(self._facts.known)
        return rows.reached_from(~self._state.are_unanchored(known)).numpy()


def check_input(state: ModelState, given: PropagationInput) -> None:
    """Refuses settings that do not go with a model."""
    check_choice("on_unknown_relation", given.on_unknown_relation, ("error", "drop"))
    if state.num_sections > 1 and given.settings.section_weight != state.section_weight:
        raise DataError(
            f"this model has {state.num_sections} sections already, and these settings ask "
            f"for {given.settings.num_sections} or other weights: take the trained model"
        )


def uses_prototypes(settings: PropagationSettings) -> bool:
    """Whether the start depends on the relations of an entity's facts."""
    return settings.start in ("prototype", "mixed")


def weight_relations(state: ModelState, settings: PropagationSettings) -> np.ndarray | None:
    """The weight of each relation; None where all are one."""
    if not settings.relation_weights:
        return None
    trained = state.trained
    count = trained.prototypes.count[: len(trained.relations)]
    weight = relation_weights(trained.residual_variance, count)
    return None if bool((weight == 1).all()) else weight.numpy()


def start_rows(
    state: ModelState,
    settings: PropagationSettings,
    keys: np.ndarray,
    ends: FactCSR,
    dtype: torch.dtype,
) -> Tensor:
    """The start of some new entities, ``[m, s, d]``, from the keys of their labels and the ends of
    their facts."""
    values = state.kge.draw_entities(keys, settings.seed, settings.num_sections)
    mean = found = None
    if uses_prototypes(settings):
        mean, found = state.trained.prototypes.average(ends.sum_all_ends)
    return start_values(values.to(dtype), settings.start, mean, found)


def _plain(block: Block) -> list[int]:
    return [block.sections.start, block.sections.stop, block.columns.start, block.columns.stop]


def _block(plain: Sequence[int]) -> Block:
    return Block(slice(plain[0], plain[1]), slice(plain[2], plain[3]))
