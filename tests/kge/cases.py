"""What every knowledge graph embedding model must fulfil; a model's test class inherits it."""

import copy
import io
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sheafprop.kge import KGE_REGISTRY, CrossEntropyLoss, KGEModel, build_model
from sheafprop.seeding import label_keys


class KGEModelCase:
    """Subclasses name the model; `more` are further arguments of its constructor."""

    name: str
    more: ClassVar[dict] = {}
    width: ClassVar[int] = 6
    #: Whether no entity can score better as the tail of a head than that head.
    closest_to_itself: ClassVar[bool] = False

    def build(self, **config) -> KGEModel:
        sizes = {"num_nodes": 11, "num_relations": 4, "hidden_channels": self.width}
        config = sizes | self.more | config
        model = build_model(self.name, **config)
        model.reset_parameters(seed=3)
        return model

    def build_double(self, **config) -> KGEModel:
        return self.build(**config).double()

    def triples(self, size=23):
        generator = torch.Generator().manual_seed(5)
        head = torch.randint(11, (size,), generator=generator)
        tail = torch.randint(11, (size,), generator=generator)
        # relation 2 is absent, and rows of one relation are not neighbours
        relation = torch.tensor([0, 1, 3])[torch.randint(3, (size,), generator=generator)]
        return head, relation, tail

    def vectors(self, model, num_rows=11, num_sections=None):
        generator = torch.Generator().manual_seed(7)
        sections = [] if num_sections is None else [num_sections]
        shape = (num_rows, *sections, self.width)
        dtype = model.entity_vectors().dtype
        return torch.randn(shape, generator=generator, dtype=dtype)

    # The sheaf -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
    def test_score_is_minus_the_norm_of_the_residual_of_the_sheaf(self, p):
        model = self.build_double(p=p)
        sheaf, x = model.sheaf(), model.entity_vectors()
        head, relation, tail = self.triples()
        scores = model(head, relation, tail).tolist()
        for h, r, t, score in zip(head, relation, tail, scores, strict=True):
            head_map = sheaf.restriction_map(int(r), "head", width=self.width).to(x.dtype)
            tail_map = sheaf.restriction_map(int(r), "tail", width=self.width).to(x.dtype)
            b = sheaf.translation_of(r.view(1))
            residual = tail_map @ x[t] - head_map @ x[h] - (0 if b is None else b[0])
            parts = np.abs(residual.detach().numpy()).reshape(-1, model.block)
            modulus = np.linalg.norm(parts, axis=1)
            assert -np.linalg.norm(modulus, ord=p) == pytest.approx(score, rel=1e-12)

    def test_sheaf_passes_gradients_to_every_relation_parameter(self):
        model = self.build_double()
        sheaf = model.sheaf()
        edge_type = torch.arange(4)
        x = self.vectors(model, 4).requires_grad_()
        residual = sheaf.restrict(x, edge_type, "tail") - 2 * sheaf.restrict(x, edge_type, "head")
        b = sheaf.translation_of(edge_type)
        (residual if b is None else residual - b).abs().sum().backward()
        for name, parameter in model.named_parameters():
            if name != "node_emb.weight":
                assert parameter.grad.abs().sum() > 0, name

    # Scores --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("num_sections", [None, 1, 3])
    @pytest.mark.parametrize("squared", [False, True])
    @pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
    def test_scores_of_all_entities_are_scores_of_triples(self, p, squared, num_sections):
        model = self.build_double(p=p, squared=squared)
        x = self.vectors(model, num_sections=num_sections)
        head, relation, tail = self.triples()
        everyone = torch.arange(11)
        columns = [index.unsqueeze(1) for index in (head, relation, tail)]
        tails = model.score_triples(x, columns[0], columns[1], everyone)
        heads = model.score_triples(x, everyone, columns[1], columns[2])
        assert tails.shape == (23, 11)
        torch.testing.assert_close(model.score_tails(x, head, relation), tails, rtol=1e-9, atol=0)
        torch.testing.assert_close(model.score_heads(x, relation, tail), heads, rtol=1e-9, atol=0)

    def test_sections_add_up(self):
        model = self.build_double()
        x, triples = self.vectors(model, num_sections=3), self.triples()
        single = sum(model.score_triples(x[:, i], *triples) for i in range(3))
        torch.testing.assert_close(model.score_triples(x, *triples), single)

    def test_squared_is_the_square(self):
        model, squared = self.build_double(p=1.5), self.build_double(p=1.5, squared=True)
        triples = self.triples()
        torch.testing.assert_close(squared(*triples), -model(*triples).square())

    @pytest.mark.parametrize("squared", [False, True])
    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_loss_over_entities_is_the_mean_of_both_sides(self, p, squared):
        model, loss = self.build_double(p=p, squared=squared), CrossEntropyLoss(0.1, 3.0)
        head, relation, tail = self.triples()
        x = model.entity_vectors()
        everyone = torch.arange(11)
        columns = [index.unsqueeze(1) for index in (head, relation, tail)]
        tails = loss(model.score_triples(x, columns[0], columns[1], everyone), tail)
        heads = loss(model.score_triples(x, everyone, columns[1], columns[2]), head)
        self.assert_same(
            model,
            model.loss_over_entities(loss, model.entity_vectors(), torch.stack(self.triples(), 1)),
            (tails + heads) / 2,
        )
        triples = torch.stack(self.triples(), 1)
        only = model.loss_over_entities(loss, x, triples, "tail")
        torch.testing.assert_close(only, tails)

    @pytest.mark.parametrize("squared", [False, True])
    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_replaced_entities_are_scored_as_triples(self, p, squared):
        model = self.build_double(p=p, squared=squared)
        generator = torch.Generator().manual_seed(9)
        entity = torch.randint(11, (23, 5), generator=generator)
        at_head = torch.rand(23, 5, generator=generator) < 0.5
        head, relation, tail = (index.unsqueeze(1).expand(23, 5) for index in self.triples())
        triples = torch.stack(self.triples(), 1)
        scores = model.score_replaced(model.entity_vectors(), triples, entity, at_head)
        head, tail = torch.where(at_head, entity, head), torch.where(at_head, tail, entity)
        expected = model(head, relation, tail)
        torch.testing.assert_close(scores, expected)
        self.assert_same(model, scores.sin().sum(), expected.sin().sum())

    def assert_same(self, model, value, expected):
        torch.testing.assert_close(value, expected)
        parameters = list(model.parameters())
        ours = torch.autograd.grad(value, parameters, allow_unused=True)
        theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)

    @pytest.mark.parametrize("p", [1.0, 2.0])
    @pytest.mark.parametrize("num_sections", [1, 2])
    def test_scores_do_not_depend_on_the_chunk_size(self, p, num_sections, monkeypatch):
        model = self.build(p=p)
        x = self.vectors(model, num_sections=num_sections)
        head, relation, tail = self.triples()
        whole = model.score_tails(x, head, relation), model.score_heads(x, relation, tail)
        for chunk_size in (1, 7, 11):
            monkeypatch.setattr(type(model), "_chunk_size", lambda *_, size=chunk_size: size)
            tails = model.score_tails(x, head, relation)
            heads = model.score_heads(x, relation, tail)
            torch.testing.assert_close(tails, whole[0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(heads, whole[1], rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_gradients_do_not_depend_on_the_chunk_size(self, p, monkeypatch):
        model = self.build_double(p=p)
        head, relation, tail = self.triples()
        gradients = []
        for chunk_size in (20, 1, 7):
            monkeypatch.setattr(type(model), "_chunk_size", lambda *_, size=chunk_size: size)
            x = model.entity_vectors()
            tails = model.score_tails(x, head, relation)
            heads = model.score_heads(x, relation, tail)
            loss = tails.cos().sum() + heads.sin().sum()
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for other in gradients[1:]:
            for a, b in zip(gradients[0], other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("squared", [False, True])
    @pytest.mark.parametrize("p", [1.5, 2.0])
    def test_gradcheck(self, p, squared):
        model = self.build_double(p=p, squared=squared, num_nodes=1)
        head, relation, tail = self.triples(3)
        x = self.vectors(model, 4, num_sections=2).requires_grad_()
        head, tail = head % 4, tail % 4
        names, values = zip(*model.named_parameters(), strict=True)

        def call(method, *args):
            def function(x, *parameters):
                state = dict(zip(names, parameters, strict=True))
                return torch.func.functional_call(
                    _Call(model), _prefixed(state), (method, x, *args)
                )

            return torch.autograd.gradcheck(function, (x, *values), fast_mode=True)

        assert call("score_triples", head, relation, tail)
        assert call("score_tails", head, relation)
        assert call("score_heads", relation, tail)

    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_distance_zero_has_finite_gradients(self, p):
        model = self.build_double(p=p)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name == "node_emb.weight" or "emb" in name:
                    parameter.zero_()
        head, relation, tail = self.triples()
        x = model.entity_vectors()
        scores = (
            model(head, relation, tail).sum()
            + model.score_tails(x, head, relation).sum()
            + model.score_heads(x, relation, tail).sum()
        )
        assert float(scores.detach()) == 0.0
        scores.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)

    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_the_order_of_entities_relations_and_triples_changes_rounding_only(self, p):
        model = self.build_double(p=p)
        generator = torch.Generator().manual_seed(8)
        node, relation = (torch.randperm(n, generator=generator) for n in (11, 4))
        order = torch.randperm(23, generator=generator)
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(parameter[node if len(parameter) == 11 else relation])
        triples = self.triples()
        new_node, new_relation = torch.argsort(node), torch.argsort(relation)
        head, rel_type, tail = (part[order] for part in triples)
        moved = new_node[head], new_relation[rel_type], new_node[tail]
        # Sums of products in a map, then of powers of differences, each rounding of which is at
        # most a share of the two mapped vectors' length.
        terms, eps = self.width**2 + self.width, torch.finfo(torch.float64).eps
        x = model.entity_vectors()
        largest = float(x.abs().max()) * max(
            float(model.sheaf().restriction_map(r, side, self.width).abs().sum(1).max())
            for r in range(4)
            for side in ("head", "tail")
        )
        translation = model.sheaf().translation_of(torch.arange(4))
        largest += 0.0 if translation is None else float(translation.abs().max())
        atol = 2 * terms * eps * self.width * 2 * largest
        scores = model(*triples).detach()
        torch.testing.assert_close(other(*moved).detach(), scores[order], rtol=0, atol=atol)
        # The expansion of squared distances leaves half of the digits of a pair just apart enough.
        rtol = (self.width + 2) * eps**0.5
        rows = model.score_tails(x, head, rel_type)
        again = other.score_tails(other.entity_vectors(), *moved[:2])
        torch.testing.assert_close(again.detach(), rows.detach()[:, node], rtol=rtol, atol=atol)
        losses = []
        for one, batch in ((model, triples), (other, moved)):
            loss = one.loss_over_entities(
                CrossEntropyLoss(), one.entity_vectors(), torch.stack(batch, 1)
            )
            one.zero_grad()
            loss.backward()
            losses.append(loss.detach())
        # A mean of log-sum-exps, which do not stretch the errors of the scores.
        torch.testing.assert_close(*losses, rtol=rtol, atol=atol)
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            place = node if len(mine) == 11 else relation
            # Products of the scores' derivatives, which err as the distances do.
            size = float(mine.grad.abs().max())
            torch.testing.assert_close(theirs.grad, mine.grad[place], rtol=0, atol=rtol * size)

    def test_empty_batches_and_one_entity(self):
        model = self.build()
        x, none = model.entity_vectors(), torch.empty(0, dtype=torch.long)
        assert model(none, none, none).shape == (0,)
        assert model.score_tails(x, none, none).shape == (0, 11)
        assert model.score_heads(x, none, none).shape == (0, 11)
        zero = torch.zeros(1, dtype=torch.long)
        assert model.score_tails(x[:1], zero, zero).shape == (1, 1)

    def test_nan_vectors_give_nan_scores(self):
        model = self.build()
        x = self.vectors(model)
        x[2] = math.nan
        zero = torch.zeros(1, dtype=torch.long)
        scores = model.score_tails(x, zero, zero)
        assert scores.isnan().nonzero().tolist() == [[0, 2]]
        assert model.score_heads(x, zero, zero + 2).isnan().all()

    def test_wrong_vectors_are_refused(self):
        model = self.build()
        head, relation, tail = self.triples()
        x = self.vectors(model)
        with pytest.raises(ValueError, match=rf"needs shape \[N, {self.width}\].*got \[11, 5\]"):
            model.score_triples(x[:, :5], head, relation, tail)
        other = x.real.clone() if model.is_complex else torch.complex(x, x)
        with pytest.raises(ValueError, match=r"scores (real|complex) vectors"):
            model.score_tails(other, head, relation)

    @pytest.mark.parametrize("num_sections", [1, 3])
    def test_no_tensor_of_rows_times_candidates_times_width(self, num_sections):
        model = self.build(num_nodes=1, num_relations=7, hidden_channels=16)
        generator = torch.Generator().manual_seed(0)
        shape, dtype = (300, num_sections, 16), model.entity_vectors().dtype
        x = torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        index = torch.randint(300, (200,), generator=generator)
        relation = torch.randint(7, (200,), generator=generator)
        with _LargestTensor() as largest:
            model.score_tails(x, index, relation).sum().backward()
            model.score_heads(x, relation, index).sum().backward()
            model.score_triples(x, index, relation, index).sum().backward()
        assert 200 * 300 <= largest.numel < 2 * 200 * 300

    # Parameters ----------------------------------------------------------------------------------

    def test_state_is_real_and_loads_safely(self):
        model = self.build()
        assert not any(value.is_complex() for value in model.state_dict().values())
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        other = self.build()
        other.reset_parameters(seed=4)
        triples = self.triples()
        assert not torch.equal(other(*triples), model(*triples))
        other.load_state_dict(torch.load(buffer, weights_only=True))
        assert torch.equal(other(*triples), model(*triples))

    def test_config_round_trip_and_copies(self):
        model = self.build(p=1.5, squared=True, entity_constraint="ball")
        config = model.config()
        assert all(isinstance(v, (int, float, str, bool, type(None))) for v in config.values())
        other = build_model(model.name, **config)
        assert type(other) is type(model) is KGE_REGISTRY[self.name]
        assert other.config() == config
        other.load_state_dict(model.state_dict())
        triples = self.triples()
        assert torch.equal(other(*triples), model(*triples))
        assert torch.equal(copy.deepcopy(model)(*triples), model(*triples))

    def test_repr_is_one_line(self):
        text = repr(self.build())
        assert "\n" not in text
        sizes = f"num_nodes=11, num_relations=4, hidden_channels={self.width}"
        assert text.startswith(f"{KGE_REGISTRY[self.name].__name__}({sizes}")

    def test_double(self):
        model = self.build_double()
        x = model.entity_vectors()
        assert x.dtype == (torch.complex128 if model.is_complex else torch.float64)
        assert model(*self.triples()).dtype == torch.float64

    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_autocast_changes_nothing(self, p):
        model, other = self.build(p=p), self.build(p=p)
        head, relation, tail = self.triples()
        loss = CrossEntropyLoss(label_smoothing=0.1, scale=3.0)

        def total(model):
            x = model.entity_vectors()
            tails = model.score_tails(x, head, relation)
            assert tails.dtype == torch.float32
            return loss(tails, tail) + loss(model.score_heads(x, relation, tail), head)

        with torch.autocast("cpu", dtype=torch.bfloat16):
            triples = model(head, relation, tail)
            value = total(model) + triples.sum()
        value.backward()
        reference = total(other) + other(head, relation, tail).sum()
        reference.backward()
        assert torch.equal(value, reference)
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-7)

    def test_half_parameters_are_scored_in_single_precision(self):
        model = self.build().to(torch.bfloat16)
        scores = model(*self.triples())
        assert scores.dtype == torch.float32
        scores.sum().backward()
        assert model.node_emb.weight.grad.dtype == torch.bfloat16
        assert model.draw_entities(["a"], seed=0).abs().dtype == torch.float32

    # Entities ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("constraint", ["unit", "ball", None])
    def test_constraint_moves_entities_and_no_relation(self, constraint):
        model = self.build_double(entity_constraint=constraint)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3 / parameter[0].norm())
            model.node_emb.weight[0] = 0.0
            for row, length in ((1, 0.1), (2, 0.9), (3, 1.1)):
                model.node_emb.weight[row] *= length / model.node_emb.weight[row].norm()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.constrain_entities_()
        for name, value in model.state_dict().items():
            if name != "node_emb.weight" or constraint is None:
                assert torch.equal(value, before[name]), name
        start = before["node_emb.weight"].norm(dim=1)
        length = torch.linalg.vector_norm(model.entity_vectors().detach(), dim=1)
        assert float(length[0]) == 0.0
        if constraint == "unit":
            torch.testing.assert_close(length[1:], torch.ones_like(length[1:]))
        if constraint == "ball":
            torch.testing.assert_close(length, start.clamp(max=1.0))
        scaled = torch.nn.functional.cosine_similarity(
            model.node_emb.weight[1:], before["node_emb.weight"][1:]
        )
        torch.testing.assert_close(scaled, torch.ones_like(scaled))

    @pytest.mark.parametrize("constraint", ["unit", "ball", None])
    def test_some_rows_alone_are_constrained_and_looked_up(self, constraint):
        some, every = (self.build_double(entity_constraint=constraint) for _ in range(2))
        index = torch.tensor([3, 0, 2])
        state = {name: 3 * value for name, value in every.state_dict().items()}
        for model in (some, every):
            model.load_state_dict(state)
        before = some.node_emb.weight.detach().clone()
        some.constrain_entities_(index)
        every.constrain_entities_()
        rest = torch.ones(some.num_nodes, dtype=torch.bool).index_fill_(0, index, False)
        assert torch.equal(some.node_emb.weight[index], every.node_emb.weight[index])
        assert torch.equal(some.node_emb.weight[rest], before[rest])
        assert torch.equal(some.entity_vectors(index), some.entity_vectors()[index])

    def test_reset_is_seeded_and_constrained(self):
        a, b = self.build(), self.build()
        assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
        b.reset_parameters(seed=4)
        assert not any(
            torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True)
        )
        torch.manual_seed(1)
        a.reset_parameters()
        torch.manual_seed(1)
        b.reset_parameters()
        assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
        length = torch.linalg.vector_norm(a.entity_vectors(), dim=1)
        torch.testing.assert_close(length, torch.ones_like(length))

    def test_draws_depend_on_the_label_alone(self):
        model = self.build_double()
        draw = model.draw_entities(["a", "b", "c"], seed=1, num_sections=3)
        assert draw.shape == (3, 3, self.width)
        assert draw.dtype == model.entity_vectors().dtype
        assert not draw.requires_grad
        assert torch.equal(draw[[2, 0]], model.draw_entities(["c", "a"], seed=1, num_sections=3))
        assert torch.equal(draw[:, :1], model.draw_entities(["a", "b", "c"], seed=1))
        keys = label_keys(["a", "b", "c"])
        assert torch.equal(draw, model.draw_entities(keys, seed=1, num_sections=3))
        assert not torch.equal(draw, model.draw_entities(keys, seed=2, num_sections=3))
        assert len(draw.flatten(0, 1).real.unique(dim=0)) == 9
        length = torch.linalg.vector_norm(draw, dim=-1)
        torch.testing.assert_close(length, torch.ones_like(length))
        with pytest.raises(ValueError, match=r"'num_sections'.*got 0"):
            model.draw_entities(["a"], seed=1, num_sections=0)

    @pytest.mark.parametrize("constraint", ["unit", "ball", None])
    def test_draws_are_distributed_like_the_initialization(self, constraint):
        model = self.build_double(num_nodes=4000, entity_constraint=constraint)
        table = model.node_emb.weight.detach()
        draw = model.draw_entities(np.arange(4000, dtype=np.uint64), seed=1)[:, 0]
        draw = torch.view_as_real(draw).flatten(1) if model.is_complex else draw
        for statistic in (torch.abs, torch.square, lambda rows: rows.norm(dim=1)):
            a, b = statistic(table), statistic(draw)
            spread = float((a.var() / a.numel() + b.var() / b.numel()).sqrt())
            assert abs(float(a.mean() - b.mean())) <= 5 * spread + 1e-12
        assert float(table.mean()) == pytest.approx(0, abs=0.05)
        assert float(draw.mean()) == pytest.approx(0, abs=0.05)

    def test_rescale(self):
        model = self.build_double()
        x = self.vectors(model, num_sections=2)
        x[3, 1] = 0
        scaled = model.rescale_entities(x)
        length = torch.linalg.vector_norm(scaled, dim=-1)
        assert float(length[3, 1]) == 0.0
        length[3, 1] = 1.0
        torch.testing.assert_close(length, torch.ones_like(length))
        torch.testing.assert_close(scaled * torch.linalg.vector_norm(x, dim=-1, keepdim=True), x)
        for constraint in ("ball", None):
            model = self.build_double(entity_constraint=constraint)
            with torch.no_grad():
                model.node_emb.weight.mul_(torch.linspace(0.2, 0.8, 11)[:, None])
            mean = float(torch.linalg.vector_norm(model.entity_vectors().detach(), dim=1).mean())
            length = torch.linalg.vector_norm(model.rescale_entities(x[:3]), dim=-1)
            torch.testing.assert_close(length, torch.full_like(length, mean))

    # Learning ------------------------------------------------------------------------------------

    def test_cross_entropy_over_all_entities_learns_the_triples(self):
        model = self.build(hidden_channels=16)
        head, tail = torch.arange(5), torch.arange(5, 10)
        relation = torch.tensor([0, 1, 3, 0, 1])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        loss = CrossEntropyLoss(scale=10.0)
        for _ in range(60):
            optimizer.zero_grad()
            loss(model.score_tails(model.entity_vectors(), head, relation), tail).backward()
            optimizer.step()
            model.constrain_entities_()
        scores = model.score_tails(model.entity_vectors(), head, relation)
        if self.closest_to_itself:
            scores = scores.scatter(1, head.unsqueeze(1), -math.inf)
        assert torch.equal(scores.argmax(1), tail)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"num_nodes": 0}, "'num_nodes'.*got 0"),
            ({"num_relations": -1}, "'num_relations'.*got -1"),
            ({"hidden_channels": 2.5}, "'hidden_channels'.*got 2.5"),
            ({"p": 0.5}, "'p'.*got 0.5"),
            ({"p": math.nan}, "'p'.*got nan"),
            ({"entity_constraint": "sphere"}, "'entity_constraint'.*got 'sphere'"),
        ],
    )
    def test_bad_arguments_are_refused(self, config, message):
        with pytest.raises(ValueError, match=message):
            self.build(**config)


class _LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # Expanded views hold no memory of their own.
        sizes = [
            t.untyped_storage().nbytes() // t.element_size()
            for t in tree_leaves(result)
            if isinstance(t, torch.Tensor)
        ]
        self.numel = max([self.numel, *sizes])
        return result


class _Call(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, method, *args):
        return getattr(self.model, method)(*args)


def _prefixed(state):
    return {f"model.{name}": value for name, value in state.items()}
