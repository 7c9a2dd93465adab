"""Vectors from files against extensions of the model in memory."""

import errno
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sheafprop.data import write_triples
from sheafprop.distributed import Ranks
from sheafprop.errors import DataError, FormatError
from sheafprop.files import StorageError
from sheafprop.inductive.propagation_settings import PropagationSettings
from sheafprop.nn import SheafPropagation
from sheafprop.pretrained.mapped import cost_estimate, propagation_job
from sheafprop.pretrained.mapped.column_table import split_columns
from sheafprop.pretrained.mapped.cost_estimate import CostEstimate
from sheafprop.pretrained.mapped.job_record import work_folder
from sheafprop.pretrained.mapped.propagation_job import PropagationInput, PropagationJob
from sheafprop.pretrained.model_state import ModelState
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.kills import killed_at
from tests.pretrained.models import ADRIFT, FACTS, stored_model
from tests.sheaf_cases import same_numbers

SETTINGS = PropagationSettings(iterations=4, num_random=2, seed=5)


class Bench:
    """A model and facts in files, and jobs on them in blocks of few columns."""

    def __init__(
        self, tmp_path, monkeypatch, name="rotate", *, most=2, facts=None, saved=False, **options
    ):
        self.root = tmp_path
        stored = stored_model(name, **options)
        self.model, self.state = SheafModel(stored), ModelState.from_stored(stored)
        self.folder, self.facts = tmp_path / "model", tmp_path / "facts.tsv"
        self.rows = [*FACTS, *ADRIFT] if facts is None else facts
        if not saved:
            self.model.save(self.folder)
            write_triples(self.facts, self.rows)
        self.settings = SETTINGS
        self.most = most
        monkeypatch.setattr(CostEstimate, "of", classmethod(self._estimate))

    def _estimate(self, cls, problem, memory, threads, ranks):
        most = max(self.most, problem.unit)
        blocks = split_columns(problem.num_sections, problem.width, most, problem.unit)
        return cls.of_blocks(problem, blocks, threads)

    def job(self, *, memory=10**12, options=None, **more):
        given = PropagationInput(
            [self.facts], self.folder / "manifest.json", options or {}, self.settings
        )
        return PropagationJob(self.state, given, self.out, memory, shown=False, **more)

    @property
    def out(self):
        return self.root / "out"

    @property
    def work(self):
        return self.root / ".out.partial"

    def vectors(self):
        return torch.from_numpy(np.load(self.out / "vectors.npy"))

    def expected(self):
        larger = self.model.extend(self.rows, propagation=self.settings)
        return larger.vectors(larger.labels()[self.model.num_entities :])


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["transe", "rotate", "su2e", "pairre", "lineare", "um"])
@pytest.mark.parametrize("start", ["mixed", "random", "prototype", "zeros"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_are_those_of_an_extension(tmp_path, monkeypatch, name, start, dtype):
    # Without the loop, whose ends are added in another order.
    facts = [fact for fact in (*FACTS, *ADRIFT) if fact[0] != fact[2]]
    width = 8 if name == "su2e" else 4  # two blocks each
    bench = Bench(tmp_path, monkeypatch, name, facts=facts, dtype=dtype, width=width)
    bench.settings = replace(SETTINGS, start=start)
    assert bench.job().run() == bench.out
    assert same_numbers(bench.vectors(), bench.expected())
    assert not bench.work.exists()


@pytest.mark.parametrize("most", [1, 3, 4, 8, 100])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"relation_weights": True},
        {"normalization": "degree"},
        {"normalization": None, "step_size": 0.05},
        {"teleport": 0.3},
        {"iterations": 0},
        {"iterations": 200},
        {"normalize_output": False},
    ],
    ids=str,
)
def test_every_setting_in_blocks_of_any_width(tmp_path, monkeypatch, most, changes):
    bench = Bench(tmp_path, monkeypatch, "pairre", most=most)
    bench.settings = replace(SETTINGS, **changes)
    bench.job().run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12, rtol=1e-12)
    rows = [json.loads(x) for x in (bench.out / "entities.jsonl").read_text().splitlines()]
    larger = bench.model.extend(bench.rows, propagation=bench.settings)
    new = larger.entities()[bench.model.num_entities :]
    assert [row["label"] for row in rows] == new["entity"].tolist()
    assert [row["origin"] for row in rows] == new["origin"].tolist()


def stop_after(monkeypatch, blocks, steps, error):
    """Ends the process, as far as it can be told, at a step of a block."""
    run = SheafPropagation.run_columns
    count = [0]

    def interrupted(self, *given, on_step, **named):
        def step(done):
            on_step(done)
            if count[0] == blocks and done == steps:
                raise error

        out = run(self, *given, on_step=step, **named)
        count[0] += 1
        return out

    monkeypatch.setattr(SheafPropagation, "run_columns", interrupted)
    return run


@pytest.mark.parametrize("blocks", [0, 1, 5])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_stopped_job_goes_on_with_the_block_that_it_was_at(bench, monkeypatch, blocks, steps):
    run = stop_after(monkeypatch, blocks, steps, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.job().run()
    assert not bench.out.exists()
    again = []
    monkeypatch.setattr(
        SheafPropagation,
        "run_columns",
        lambda self, *given, **named: (again.append(1), run(self, *given, **named))[1],
    )
    monkeypatch.setattr(propagation_job, "write_fact_ids", None)
    monkeypatch.setattr(propagation_job, "build_fact_csr", None)
    bench.job().run()
    assert len(again) == 6 - blocks
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)


@pytest.mark.parametrize("stage", ["write_fact_ids", "build_fact_csr", "write_vector_folder"])
def test_a_job_that_ended_in_another_stage_begins_that_stage_again(bench, monkeypatch, stage):
    def end(*given, **named):
        raise MemoryError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagation_job, stage, end)
        with pytest.raises(MemoryError):
            bench.job().run()
    assert not bench.out.exists()
    bench.job().run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)


def test_a_full_disk_is_one_line_and_the_next_call_goes_on(bench, monkeypatch):
    from sheafprop.pretrained.mapped import column_table

    left = [20]
    fsync = column_table.os.fsync

    def full(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_table.os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            bench.job().run()
    assert not bench.out.exists()
    bench.job().run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagation_job.shutil, "disk_usage", lambda path: FreeSpace(-(10**10)))
        with pytest.raises(StorageError, match="GB are needed"):
            bench.job(overwrite=True).run()


class FreeSpace:
    def __init__(self, free):
        self.free = free


@pytest.mark.parametrize("during", [True, False])
def test_an_input_that_was_changed_is_one_line(bench, monkeypatch, during):
    if during:
        finish = PropagationJob._propagate

        def change(self, rows):
            finish(self, rows)
            write_triples(bench.facts, [*bench.rows, ("n0", "next", "a2")])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PropagationJob, "_propagate", change)
            with pytest.raises(DataError, match="was changed"):
                bench.job().run()
    else:
        stop_after(monkeypatch, 1, 1, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.job().run()
        monkeypatch.undo()
        write_triples(bench.facts, [*bench.rows, ("n0", "next", "a2")])
    assert not bench.out.exists()
    with pytest.raises(DataError, match=r"facts\.tsv: it was changed .* --restart"):
        bench.job().run()
    assert not bench.out.exists()
    bench.rows.append(("n0", "next", "a2"))
    bench.job(restart=True).run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)


# The content of a start is not checked, only that of results.
@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("result/result-0000.bin", True),
        ("result/result-0000.bin", False),
        ("start/start-0003.bin", True),
    ],
)
def test_a_block_that_was_cut_or_changed_is_told_and_made_again(bench, monkeypatch, name, cut):
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2, 1, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.job().run()
    path = bench.work / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] if cut else content[:-1] + b"?")
    with pytest.raises(FormatError, match="made again by the same command"):
        bench.job().run()
    bench.job().run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)


@pytest.mark.parametrize("name", ["facts/number.bin", "rows/free.src.bin"])
def test_arrays_that_were_cut_are_made_again(bench, monkeypatch, name):
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2, 1, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.job().run()
    path = bench.work / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="made again by the same command"):
        bench.job().run()
    bench.job().run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)


def run_narrow(root):
    """The job of a bench, in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        Bench(root, patch, saved=True).job().run()


# Moments of all stages: facts, rows, start, blocks, the result, and what is removed after it.
@pytest.mark.parametrize("moment", [75, 170, 271, 390, 420, 440, 470])
def test_a_process_killed_at_any_moment_is_followed_by_one_that_goes_on(bench, moment):
    before = sorted(path.name for path in bench.root.iterdir())
    assert killed_at(moment, run_narrow, bench.root)
    is_done, is_left = bench.out.exists(), (bench.work / "job.json").exists()
    if is_done:
        assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)
        # The next command may be of other facts.
        bench.rows.append(("n0", "next", "a2"))
        write_triples(bench.facts, bench.rows)
    bench.job(overwrite=is_done, restart=is_done and is_left).run()
    assert torch.allclose(bench.vectors(), bench.expected(), atol=1e-12)
    assert sorted(path.name for path in bench.root.iterdir()) == sorted([*before, "out"])


def test_other_settings_do_not_go_on_with_the_work(bench, monkeypatch):
    stop_after(monkeypatch, 1, 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.job().run()
    monkeypatch.undo()
    bench.settings = replace(SETTINGS, iterations=9)
    with pytest.raises(DataError, match="another 'settings'"):
        bench.job().run()
    bench.settings = SETTINGS
    with pytest.raises(DataError, match="give --memory"):
        bench.job(memory=1000).run()


def test_two_processes_do_not_write_the_same_work(bench):
    with (
        work_folder(bench.work, Ranks.alone(), restart=False),
        pytest.raises(StorageError, match="another process is at work"),
    ):
        bench.job().run()


def test_an_estimate_reads_the_facts_and_no_more(bench, monkeypatch):
    monkeypatch.setattr(propagation_job, "build_fact_csr", None)
    found = bench.job().estimate()
    assert found.problem.facts == len(bench.rows)
    assert (found.problem.num_free, found.problem.num_known) == (5, 5)
    assert not bench.out.exists()
    monkeypatch.setattr(propagation_job, "write_fact_ids", None)
    bench.settings = replace(SETTINGS, iterations=9)
    assert bench.job().estimate().problem == replace(found.problem, iterations=9)


def test_a_model_whose_maps_mix_columns_is_refused(tmp_path, monkeypatch):
    bench = Bench(tmp_path, monkeypatch, "transr")
    with pytest.raises(DataError, match="'transr', whose maps mix them"):
        bench.job()


def test_memory_is_measured_where_the_system_says_it():
    assert cost_estimate.held_memory() > 10**6
    assert cost_estimate.physical_memory() > 10**8
