"""One model asked and extended by many threads at once."""

import threading

import pandas as pd
import pytest
import torch

from sheafprop.inductive.proximity_scorer import ProximitySettings
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.pretrained.models import FACTS, sheaf_model
from tests.pretrained.test_graph_scorer import with_episodes
from tests.pretrained.test_new_relations import BACK, fit


def run_at_once(works):
    """The results of functions that threads call at the same moment, or the first error."""
    barrier, results, errors = threading.Barrier(len(works)), [None] * len(works), []

    def call(i):
        try:
            barrier.wait(timeout=60)
            results[i] = works[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return results


def questions(model):
    """What is asked of a model, by as many functions."""
    grown = [("m", "next", "a1"), ("m", "far", "a4")]
    works = [lambda i=i: model.predict_tails(f"a{i}", "far", 5) for i in range(4)]
    works += [lambda i=i: model.predict_heads("next", f"a{i}", 5) for i in range(2)]
    works += [
        lambda: model.explain("n0"),
        lambda: model.score([("a1", "far", "n1")]),
        lambda: model.answer("via(far, via(next, a0))", k=3),
        lambda: model.extend(grown).vectors("m"),
        lambda: fit(model, [*BACK, *grown]).vectors("m"),
        lambda: model.remove("n2").labels(),
        lambda: model.rank([("a1", "next", "a5")]).metrics("full"),
        lambda: model.facts(),
    ]
    return works


def same(a, b):
    if isinstance(a, pd.DataFrame):
        pd.testing.assert_frame_equal(a, b)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("kind", ["rotate", "se", "mapped", "episodes"])
def test_threads_get_what_one_gets(kind, tmp_path):
    if kind == "episodes":
        stored = with_episodes(near=ProximitySettings(), walk_steps=2).extend(FACTS).stored()
        make = lambda: SheafModel(stored)  # noqa: E731
    else:
        stored = sheaf_model("rotate" if kind == "mapped" else kind).extend(FACTS)
        place = stored.save(tmp_path / "m", layout="mapped" if kind == "mapped" else "plain")
        make = lambda: SheafModel.load(place)  # noqa: E731

    def works(model):
        found = questions(model)
        return found[:10] + found[11:] if kind == "episodes" else found

    alone = [work() for work in works(make())]
    for _ in range(
        3
    ):  # a fresh model each time: what it keeps is made at first use, by all at once
        for one, other in zip(run_at_once(works(make())), alone, strict=True):
            same(one, other)


def test_threads_that_extend_the_same_model_do_not_see_each_other():
    model = sheaf_model("transe")
    works = [lambda i=i: model.extend([(f"m{i}", "next", f"a{i}")]) for i in range(8)]
    for i, grown in enumerate(run_at_once(works)):
        assert grown.labels() == (*model.labels(), f"m{i}")
        torch.testing.assert_close(grown.vectors(f"m{i}"), works[i]().vectors(f"m{i}"))
