"""Optimizers and schedules, by name and injected."""

import math
import tracemalloc
import warnings
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sheafprop.kge import KGE_REGISTRY, TransE
from sheafprop.ranking import TripleFilter
from sheafprop.training import InductiveDataModule, SheafCompletion, optimization
from sheafprop.training.optimization import (
    RowAdam,
    RowwiseAdagrad,
    build_optimizer,
    cosine_schedule,
    move_schedule,
    prefer_options,
)
from tests.toy import toy_data
from tests.training.test_sheaf_completion import fit, module, trainer


def parameters():
    return [torch.nn.Parameter(torch.ones(2))]


def model():
    return TransE(3, 2, 4)


def test_the_schedule_starts_at_the_full_rate_and_ends_at_zero(tmp_path):
    class Rates(Callback):
        seen: ClassVar[list[float]] = []

        def on_train_batch_start(self, trainer, *_):
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    data, rates = toy_data(), Rates()
    rates.seen.clear()
    _, run = fit(tmp_path, 2, data, callbacks=[rates], lr=0.1, lr_schedule="cosine")
    total = 2 * -(-len(data.train.triples) // 16)
    expected = [0.05 * (1 + math.cos(math.pi * step / total)) for step in range(total)]
    assert rates.seen == pytest.approx(expected)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_the_cosine_is_that_of_torch():
    def rates(schedule):
        seen = []
        for _ in range(8):
            seen.append(schedule.get_last_lr()[0])
            schedule.optimizer.step()
            schedule.step()
        return seen

    ours, theirs = (torch.optim.SGD(parameters(), lr=0.3) for _ in range(2))
    expected = rates(torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=8))
    assert rates(cosine_schedule(ours, 8)) == pytest.approx(expected)
    assert ours.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_what_is_set_now_wins_over_what_is_stored():
    old = build_optimizer("sgd", model(), lr=0.3, weight_decay=0.2)
    schedule = cosine_schedule(old, 4)
    for _ in range(2):
        old.step()
        schedule.step()
    checkpoint = {"optimizer_states": [old.state_dict()], "lr_schedulers": [schedule.state_dict()]}
    new = build_optimizer("sgd", model(), lr=0.1, weight_decay=0.0)
    again = cosine_schedule(new, 8)
    prefer_options(checkpoint, new)
    new.load_state_dict(checkpoint["optimizer_states"][0])
    again.load_state_dict(checkpoint["lr_schedulers"][0])
    move_schedule(again, 2)
    assert new.param_groups[0]["weight_decay"] == 0.0
    expected = 0.05 * (1 + math.cos(math.pi * 2 / 8))
    assert new.param_groups[0]["lr"] == again.get_last_lr()[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(lr=0.0), "'lr' must be positive"),
        (dict(weight_decay=-0.1), "'weight_decay' must not be negative"),
        (dict(lr_epochs=0), "'lr_epochs' must be an integer of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        module(**changes)


def test_functions_train_as_the_names_do_and_are_not_stored(tmp_path):
    named, _ = fit(tmp_path / "named", 2, optimizer="adagrad")
    given = dict(optimizer=lambda p: torch.optim.Adagrad(p, lr=0.05))
    injected, _ = fit(tmp_path / "injected", 2, **given)
    for a, b in zip(named.parameters(), injected.parameters(), strict=True):
        assert torch.equal(a, b)
    path = tmp_path / "injected" / "checkpoints" / "last.ckpt"
    loaded = SheafCompletion.load_from_checkpoint(path)
    assert "optimizer" not in torch.load(path, weights_only=True)["hyper_parameters"]
    assert torch.equal(loaded.model.node_emb.weight, injected.model.node_emb.weight)
    whole, _ = fit(tmp_path / "whole", 4, **given)
    resumed, _ = fit(tmp_path / "rest", 4, resume=path, **given)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match=r"with --model\.optimizer 'of a class'"):
        fit(tmp_path / "other", 5, resume=path)


def test_an_injected_schedule_steps_after_every_epoch_also_of_a_resumed_run(tmp_path):
    class Rates(Callback):
        seen: ClassVar[list[float]] = []

        def on_train_epoch_start(self, trainer, *_):
            self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    Rates.seen.clear()
    step = dict(lr=0.08, lr_schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5))
    fit(tmp_path, 2, toy_data(), callbacks=[Rates()], **step)
    last = tmp_path / "checkpoints" / "last.ckpt"
    fit(tmp_path / "rest", 4, toy_data(), callbacks=[Rates()], resume=last, **step)
    assert Rates.seen == pytest.approx([0.08, 0.04, 0.02, 0.01])


ENTITIES, RELATIONS = 30, 3
#: Loops, a triple that comes twice, entities on both sides, and few of all entities.
BATCHES = torch.tensor(
    [
        [[0, 0, 1], [1, 1, 1], [2, 2, 0], [0, 0, 1], [5, 1, 0]],
        [[7, 2, 7], [1, 0, 8], [8, 1, 1], [9, 2, 0], [9, 2, 3]],
        [[0, 1, 0], [0, 1, 5], [6, 0, 0], [29, 0, 4], [4, 2, 29]],
    ]
)
LOSSES = {
    "sampled": dict(num_candidates=11),
    "known": dict(num_candidates=11, leave_out_known=True),
    "every": dict(num_candidates=ENTITIES),  # all entities, as rows of the batch
    "nssa": dict(loss="nssa", num_negatives=4),
    "margin": dict(loss="margin_ranking", num_negatives=4),
}


def run(sparse, optimizer, steps=4, entities=ENTITIES, **options):
    """Weights after some steps in double precision, as the trainer would make them."""
    some = module(optimizer=optimizer, **options)
    some.kge = model = some.build(entities, RELATIONS).double()
    model.constrain_entities_()  # rows that are no part of a batch have double precision too
    model.node_emb.sparse = sparse
    built = build_optimizer(optimizer, model, lr=0.05, weight_decay=0.0, clips_gradients=True)
    known = None
    if options.get("leave_out_known"):
        known = TripleFilter(BATCHES.flatten(0, 1), entities, RELATIONS)
    for step in range(steps):
        batch = BATCHES[step % len(BATCHES)]
        built.zero_grad()
        some.batch_loss(model, batch, torch.arange(5) + 5 * step, step, known).backward()
        assert model.node_emb.weight.grad.is_sparse == sparse
        some.on_before_optimizer_step(built)
        built.step()
        some.on_train_batch_end()
    return model


def check_equal(ours, theirs, atol=1e-12):
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("kge", sorted(KGE_REGISTRY))
@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad", "sgd"])
def test_a_sparse_step_is_the_dense_step_for_every_model(kge, optimizer):
    for options in (LOSSES["sampled"], LOSSES["nssa"]):
        sparse, dense = (run(s, optimizer, kge=kge, **options) for s in (True, False))
        check_equal(sparse, dense)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("constraint", ["unit", "ball", None])
def test_a_sparse_step_is_the_dense_step_for_every_loss_and_constraint(loss, constraint):
    options = dict(LOSSES[loss], kge_args={"entity_constraint": constraint})
    for kge in ("rotate", "transr"):
        sparse, dense = (run(s, "adagrad", kge=kge, **options) for s in (True, False))
        check_equal(sparse, dense)


def test_adam_of_all_rows_is_adam_and_leaves_rows_of_other_entities_alone():
    options = dict(LOSSES["every"], kge="rotate")
    check_equal(*(run(sparse, "adam", **options) for sparse in (True, False)))
    options = dict(LOSSES["sampled"], kge="transe")
    start, after = (run(True, "adam", steps=n, **options) for n in (0, 1))
    some = module(**options)
    ids = some.batch_loss._draw_candidates(ENTITIES, BATCHES[0], torch.arange(5), 0)
    moved = (start.node_emb.weight != after.node_emb.weight).any(1).nonzero().flatten()
    assert torch.equal(moved, ids)
    assert len(ids) < ENTITIES


class _Largest(TorchDispatchMode):
    """Remembers the most numbers that a new tensor held, besides those of given tensors."""

    def __init__(self, given):
        super().__init__()
        self.given = {t.untyped_storage().data_ptr() for t in given}
        self.numel, self.name = 0, None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if not isinstance(t, torch.Tensor):
                continue
            if t.is_sparse:
                t = t._values()
            storage = t.untyped_storage()
            numel = storage.nbytes() // t.element_size()
            if storage.data_ptr() not in self.given and numel > self.numel:
                self.numel, self.name = numel, str(function)
        return result


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rowwise_adagrad", "sgd"])
@pytest.mark.parametrize("loss", ["sampled", "known", "nssa"])
def test_a_step_makes_nothing_of_the_size_of_the_table(loss, optimizer):
    entities, options = 50_000, LOSSES[loss]
    some = module(optimizer=optimizer, kge="rotate", **options)
    some.kge = model = some.build(entities, RELATIONS)
    model.node_emb.sparse = True
    built = build_optimizer(optimizer, model, lr=0.05, weight_decay=0.0)
    known = None
    if loss == "known":
        known = TripleFilter(BATCHES.flatten(0, 1), entities, RELATIONS)

    def step(number):
        built.zero_grad()
        batch = BATCHES[number]
        some.batch_loss(model, batch, torch.arange(5), number, known).backward()
        some.on_before_optimizer_step(built)
        built.step()
        some.on_train_batch_end()

    step(0)  # makes the optimizer's state
    state = [v for s in built.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    tracemalloc.start()
    with _Largest([*model.parameters(), *state]) as largest:
        step(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < largest.numel < entities // 8, largest.name
    assert peak < 8 * entities  # arrays of numpy


def trained(folder, data=None, batch_size=6, **options):
    """A module after two epochs; options of the trainer under 'trainer'."""
    run_options = options.pop("trainer", {})
    some, run_ = module(**options), trainer(folder, 2, **run_options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_.fit(
            some,
            datamodule=InductiveDataModule.from_data(data or toy_data(), batch_size=batch_size),
        )
    return some


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(accumulate_grad_batches=3),
        dict(gradient_clip_val=0.02),
        dict(gradient_clip_val=0.002, gradient_clip_algorithm="value"),
        dict(precision="bf16-mixed", gradient_clip_val=0.02),
        dict(precision="16-mixed", gradient_clip_val=0.02),
        dict(precision="64-true", accumulate_grad_batches=2, gradient_clip_val=0.02),
    ],
    ids=lambda o: "-".join(str(v) for v in o.values()) or "plain",
)
def test_the_trainer_accumulates_clips_and_scales_sparse_gradients(tmp_path, options):
    found = {}
    for sparse in (True, False):
        some = trained(
            tmp_path / str(sparse),
            sparse=sparse,
            kge="rotate",
            optimizer="rowwise_adagrad",
            num_candidates=3,
            trainer=options,
        )
        assert some.model.node_emb.sparse == sparse
        found[sparse] = some.model
    check_equal(found[True], found[False], atol=1e-5)
    if "gradient_clip_val" in options:
        free = trained(
            tmp_path / "free",
            sparse=True,
            kge="rotate",
            optimizer="sgd",
            num_candidates=3,
            trainer=options | dict(gradient_clip_val=None),
        )
        bound = trained(
            tmp_path / "bound",
            sparse=True,
            kge="rotate",
            optimizer="sgd",
            num_candidates=3,
            trainer=options,
        )
        assert not torch.allclose(free.model.rel_emb.weight, bound.model.rel_emb.weight, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(),
            "the cross entropy uses all entities as candidates: set --model.num_candidates to",
        ),
        (dict(loss="nssa", weight_decay=0.1), "weight decay changes every row of the table"),
    ],
)
def test_what_needs_the_whole_table_is_refused(options, message, monkeypatch, tmp_path, capsys):
    with pytest.raises(ValueError, match=f"'sparse' cannot be true: {message}"):
        module(sparse=True, **options)
    module(sparse=False, **options)
    monkeypatch.setattr(optimization, "MANY_ENTITIES", 5)
    assert not trained(tmp_path, **options).model.node_emb.sparse
    text = "note: every step reads and writes all 18 entities, since " + message
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (torch.optim.Adam, r"Adam does not support --model\.sparse true: choose one of RowAdam"),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
            r"SGD with momentum changes every row .*momentum=0\.5",
        ),
        (
            lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.2),
            r"Adagrad with weight_decay changes every row .*weight_decay=0\.2",
        ),
    ],
)
def test_an_optimizer_that_moves_every_row_is_refused(tmp_path, build, message):
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, sparse=True, num_candidates=3, optimizer=build)


def test_a_strategy_without_sparse_gradients_is_refused(tmp_path):
    class Other:
        strategy = object()

    choose = optimization.choose_sparse
    with pytest.raises(ValueError, match=r"--trainer\.strategy ddp \(got object\)"):
        choose(True, 9, None, "adam", Other())
    sparse, note = choose("auto", 10**6, None, "adam", Other())
    assert not sparse
    assert "every step reads and writes all 1,000,000 entities" in note


def test_many_entities_train_sparsely_and_the_run_says_so(tmp_path, monkeypatch, capsys):
    few = trained(tmp_path / "few", num_candidates=3)
    assert not few.model.node_emb.sparse
    assert "note" not in capsys.readouterr().err
    monkeypatch.setattr(optimization, "MANY_ENTITIES", 5)
    many = trained(tmp_path / "many", num_candidates=3)
    assert many.model.node_emb.sparse
    text = "each step reads and writes only the rows of its batch, since there are 18 entities"
    assert text in capsys.readouterr().err
    stored = {
        name: torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True)
        for name in ("few", "many")
    }
    assert [stored[name]["sheafprop"]["sparse"] for name in ("few", "many")] == [False, True]
    given = trained(
        tmp_path / "given", num_candidates=3, optimizer=lambda p: torch.optim.Adagrad(p, lr=0.1)
    )
    assert not given.model.node_emb.sparse
    assert "an injected optimizer may not support sparse gradients" in capsys.readouterr().err


def test_a_dense_run_stays_dense_where_it_is_resumed(tmp_path, monkeypatch, capsys):
    whole, _ = fit(tmp_path / "whole", 4, num_candidates=3)
    fit(tmp_path / "half", 2, num_candidates=3)
    last = tmp_path / "half" / "checkpoints" / "last.ckpt"
    stored = torch.load(last, weights_only=True)
    del stored["sheafprop"]["sparse"], stored["hyper_parameters"]["sparse"]  # of version 0.1.0
    torch.save(stored, last)
    monkeypatch.setattr(optimization, "MANY_ENTITIES", 5)
    resumed, _ = fit(tmp_path / "rest", 4, resume=last, num_candidates=3)
    assert not resumed.model.node_emb.sparse
    assert "rows of its batch" not in capsys.readouterr().err
    check_equal(resumed.model, whole.model, atol=0)


ROWS, WIDTH = 7, 5
#: Which rows the gradient of each step has; some come again, one (4) never does.
STEPS = ([0, 3], [5, 3, 6], [3], [0, 1, 2, 6])


def draw_parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    table, other = (
        torch.randn(n, WIDTH, generator=generator, dtype=dtype).requires_grad_() for n in (ROWS, 2)
    )
    return table, other


def gradients(sparse, steps=STEPS):
    """Gradients of a table and of another parameter; some rows of the first have two entries."""
    generator = torch.Generator().manual_seed(1)
    for rows in steps:
        index = torch.tensor([*rows, rows[0]])
        values = torch.randn(len(index), WIDTH, generator=generator, dtype=torch.float64)
        grad = torch.sparse_coo_tensor(index.unsqueeze(0), values, (ROWS, WIDTH))
        other = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64)
        yield grad if sparse else grad.to_dense(), other


def apply_steps(build, sparse, steps=STEPS):
    table, other = draw_parameters()
    start = table.detach().clone()
    optimizer = build(table, other)
    for table.grad, other.grad in gradients(sparse, steps):
        optimizer.step()
    return table.detach(), other.detach(), start, optimizer


def rowwise(table, other):
    groups = [{"params": [table], "rowwise": True}, {"params": [other]}]
    return RowwiseAdagrad(groups, lr=0.3)


def test_rowwise_adagrad_is_its_formula():
    table, _, x, _ = apply_steps(rowwise, sparse=True)
    total = torch.zeros(ROWS, dtype=x.dtype)
    for grad, _ in gradients(sparse=False):
        total += grad.square().mean(1)
        moved = grad.abs().sum(1) > 0
        x[moved] -= 0.3 * grad[moved] / (total[moved].sqrt() + 1e-10).unsqueeze(1)
    torch.testing.assert_close(table, x, rtol=1e-13, atol=1e-13)


def test_sparse_gradients_give_what_dense_ones_give_and_read_no_other_row():
    for build in (rowwise, lambda *p: RowwiseAdagrad(p, lr=0.3)):
        (table, other, start, optimizer), dense = (
            apply_steps(build, True),
            apply_steps(build, False),
        )
        torch.testing.assert_close(table, dense[0], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(other, dense[1], rtol=0, atol=0)
        assert torch.equal(table[4], start[4])
        totals = optimizer.state[optimizer.param_groups[0]["params"][0]]["sum"]
        assert not totals[4].any()
    assert totals.shape == (ROWS, WIDTH)  # one for each number, without 'rowwise'


def test_numbers_of_their_own_are_those_of_torch():
    for sparse in (True, False):
        ours = apply_steps(lambda *p: RowwiseAdagrad(p, lr=0.3), sparse)
        theirs = apply_steps(lambda *p: torch.optim.Adagrad(p, lr=0.3), sparse)
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_row_adam_is_adam_where_every_row_has_a_gradient():
    every = [list(range(ROWS))] * 5
    options = dict(lr=0.1, betas=(0.7, 0.8), eps=1e-3)
    ours = apply_steps(lambda *p: RowAdam(p, **options), True, every)
    theirs = apply_steps(lambda *p: torch.optim.Adam(p, **options), False, every)
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_row_adam_leaves_other_rows_and_their_moments_as_sparse_adam_does():
    # Torch's adds epsilon before the bias is corrected.
    ours = apply_steps(lambda *p: RowAdam(p, lr=0.1, eps=1e-30), sparse=True)
    theirs = apply_steps(
        lambda table, _: torch.optim.SparseAdam([table], lr=0.1, eps=1e-30), sparse=True
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    assert torch.equal(ours[0][4], ours[2][4])
    dense = apply_steps(lambda *p: torch.optim.Adam(p, lr=0.1, eps=1e-30), sparse=False)
    torch.testing.assert_close(ours[1], dense[1], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(ours[0], dense[0])  # rows that had a gradient once still move there


@pytest.mark.parametrize("build", [rowwise, lambda *p: RowAdam(p, lr=0.3)])
def test_stored_state_goes_on_as_if_nothing_had_happened(build):
    whole = apply_steps(build, sparse=True)
    table, other = draw_parameters()
    optimizer = build(table, other)
    for step, (table.grad, other.grad) in enumerate(gradients(sparse=True)):
        if step == 2:
            state, grad = optimizer.state_dict(), (table.grad, other.grad)
            table, other = (p.detach().clone().requires_grad_() for p in (table, other))
            optimizer = build(table, other)
            optimizer.load_state_dict(state)
            table.grad, other.grad = grad
        optimizer.step()
    assert torch.equal(table, whole[0])
    assert torch.equal(other, whole[1])


@pytest.mark.parametrize("kind", [RowwiseAdagrad, RowAdam])
def test_weight_decay_is_of_dense_gradients_alone(kind):
    with pytest.raises(RuntimeError, match="weight decay is not compatible with sparse gradients"):
        apply_steps(lambda *p: kind(p, lr=0.1, weight_decay=0.1), sparse=True)
    twin = {RowwiseAdagrad: torch.optim.Adagrad, RowAdam: torch.optim.Adam}[kind]
    ours, theirs = (
        apply_steps(lambda *p, made=made: made(p, lr=0.1, weight_decay=0.1), sparse=False)
        for made in (kind, twin)
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-13, atol=1e-13)


def test_a_closure_computes_the_gradients():
    for kind in (RowwiseAdagrad, RowAdam):
        table, other = draw_parameters()
        optimizer, before = kind([table, other], lr=0.1), table.detach().clone()

        def closure(table=table):
            loss = torch.nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert loss.item() == pytest.approx(float(before[2].sum()))
        assert table.grad is not None
        assert ((table != before).any(1).nonzero() == 2).all()
