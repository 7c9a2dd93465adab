"""Every script of the gallery runs, is short, and prints what its text promises."""

import contextlib
import io
import json
import re
import runpy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.distributed.rank_pool import pool

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
NAMES = [path.stem for path in EXAMPLES]


def run(name, capsys, monkeypatch, tmp_path, shorter=("", "")):
    """What a script prints and defines, with one text in the place of another."""
    (path,) = (path for path in EXAMPLES if path.stem == name)
    monkeypatch.chdir(tmp_path)
    if shorter[0]:
        text = path.read_text(encoding="utf-8")
        assert text.count(shorter[0]) == 1
        path = tmp_path / path.name
        path.write_text(text.replace(*shorter))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out, names


def number_after(text, out):
    return float(re.search(rf"{re.escape(text)}\s*([-+.\de]+)", out)[1])


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_an_example_is_short_and_has_a_title(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    title, rule = text.splitlines()[1:3]
    assert text.startswith('"""\n')
    assert rule == "=" * len(title)


def test_every_example_has_a_test():
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    # The sheaf of one's own has its test beside the helpers that it is checked by.
    assert set(NAMES) - {"own_sheaf"} <= tests


def test_hetero_classifier(capsys, monkeypatch, tmp_path):
    out, _ = run("hetero_classifier", capsys, monkeypatch, tmp_path)
    plain, propagated = (number_after(f"{k} steps: test accuracy", out) for k in (0, 4))
    assert propagated > plain + 0.1


def test_feature_propagation(capsys, monkeypatch, tmp_path):
    out, _ = run("feature_propagation", capsys, monkeypatch, tmp_path)
    assert number_after("child of:", out) == pytest.approx(-28, abs=3)
    names = ("mean of the known years:", "without relations:", "with relations:")
    mean, untyped, typed = (number_after(name, out) for name in names)
    assert typed < untyped < mean


def test_mini_batches(capsys, monkeypatch, tmp_path):
    out, names = run("mini_batches", capsys, monkeypatch, tmp_path)
    assert number_after("gap", out) < 1e-4
    assert number_after("after:", out) < 0.8 * number_after("before:", out)
    translation = names["model"].sheaf().translation
    assert translation.flatten().tolist() == pytest.approx([1, 0, 0, 1], abs=0.2)


def test_inductive_completion(capsys, monkeypatch, tmp_path):
    _, names = run("inductive_completion", capsys, monkeypatch, tmp_path)
    full = {
        row["method"]: row["metrics"]["mrr"]
        for row in names["module"].results
        if row["protocol"] == "full"
    }
    assert full["RotatE + sheaf propagation"] > 0.5
    assert full["RotatE, random vectors (no propagation)"] < 0.1
    assert "new" in names["larger"].labels()


def test_logical_queries(capsys, monkeypatch, tmp_path):
    _, names = run("logical_queries", capsys, monkeypatch, tmp_path)
    assert names["answers"]["answer"].iloc[0] == "French"
    assert set(names["links"]["link"]) == {"fact", "predicted"}


def test_extend_pykeen(capsys, monkeypatch, tmp_path):
    pytest.importorskip("pykeen")
    # Whether PyKEEN trains well changes nothing here.
    shorter = '"num_epochs": 50', '"num_epochs": 2'
    out, names = run("extend_pykeen", capsys, monkeypatch, tmp_path, shorter)
    assert "14 countries" in out
    assert names["larger"].labels()[-1] == "atlantis"
    known = list(names["model"].labels())
    assert names["larger"].vectors(known).equal(names["model"].vectors(known))


def test_serve(capsys, monkeypatch, tmp_path):
    out, names = run("serve", capsys, monkeypatch, tmp_path)
    assert out.splitlines()[0] == "[{'entity': 'ten', 'origin': 'extended'}]"
    assert "'tail': 'ten', 'score': 0.0" in out.splitlines()[1]
    service = names["Service"](names["service"].model)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{service.server_port}"
    for path, body in (
        ("/predict?head=5", None),
        ("/predict?head=nine&relation=plus+2", None),
        ("/predict?head=5&relation=plus+2&k=many", None),
        ("/extend", b"no json"),
        ("/extend", b'[["a", "minus 2", "b"]]'),
    ):
        with pytest.raises(HTTPError) as caught:
            urlopen(f"{place}{path}", body)
        assert caught.value.code == 400
        error = json.load(caught.value)["error"]
        assert error
        assert error.startswith("not JSON: ") == (body == b"no json")
        assert (error == "the request has no 'relation'") == (path == "/predict?head=5")
    # Threads that ask and extend at once: every answer is of a whole model.
    labels = [f"m{i}" for i in range(8)]

    def grow(label):
        facts = json.dumps([[label, "plus 2", "3"]]).encode()
        return json.load(urlopen(f"{place}/extend", facts))[0]["entity"]

    def ask(_):
        return json.load(urlopen(f"{place}/predict?head=5&relation=plus+2&k=1"))[0]["tail"]

    with ThreadPoolExecutor(8) as pool:
        grown, asked = pool.map(grow, labels), pool.map(ask, range(24))
        assert list(grown) == labels
        assert set(asked) == {"ten"}
    assert set(labels) < set(service.model.labels())
    service.shutdown()
    service.server_close()
    # Imported, it serves nothing of its own.
    (path,) = (path for path in EXAMPLES if path.stem == "serve")
    assert "service" not in runpy.run_path(str(path), run_name="serve")


def run_on_rank(ranks, path):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(path, run_name="__main__")
    return printed.getvalue(), names["graph"].exchange.rounds, len(names["graph"].owned)


def test_two_ranks(capsys, monkeypatch, tmp_path):
    out, names = run("two_ranks", capsys, monkeypatch, tmp_path)
    assert "1000 entities, 0 of others, equal: True" in out
    assert (names["mine"] - names["place"][names["graph"].owned]).abs().max() < 0.5
    (path,) = (str(path) for path in EXAMPLES if path.stem == "two_ranks")
    (first, rounds, some), (second, _, others) = pool(2).run(run_on_rank, path)
    assert some + others == 1000
    assert rounds == 100
    assert "equal: True" in first
    assert "equal: True" in second
    assert number_after("METIS: cut", first) < 10 < number_after("hash: cut", first)
