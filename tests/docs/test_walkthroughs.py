"""The walk-throughs of the README and of ``docs``, run as they are printed."""

import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch

from sheafprop import SheafModel
from sheafprop.cli.main import main
from sheafprop.cli.search_space import SearchSpace
from sheafprop.config_files import load_config
from sheafprop.data.datasets import PykeenDataset
from sheafprop.kge import RotatE
from sheafprop.pretrained import StoredModel
from tests.docs.walkthrough import TOOLS, blocks, environment, follow, shell
from tests.forked import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
RUNS = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
OVERNIGHT = (ROOT / "docs" / "overnight.md").read_text(encoding="utf-8")
IMPORT = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
EPISODES = (ROOT / "docs" / "episodes.md").read_text(encoding="utf-8")
SPLIT = (ROOT / "docs" / "split.md").read_text(encoding="utf-8")
QUERIES = (ROOT / "docs" / "queries.md").read_text(encoding="utf-8")
FEATURES = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
RELATIONS = (ROOT / "docs" / "relations.md").read_text(encoding="utf-8")
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
TRAINER = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_the_readme_and_extending_the_model_of_the_quickstart(tmp_path, capsys):
    """With one epoch; the model of the quickstart is that of the README's ``fit``."""
    (_, commands), *others = blocks(README)
    assert others == []
    fit, test, *rest = commands.splitlines()
    assert [line.partition(" #")[0].strip() for line in (fit, test)] == [
        line.partition(" #")[0].strip() for line in blocks(RUNS)[0][1].splitlines()
    ]
    short = "--config logger/csv --trainer.max_epochs 1"
    for line in (fit.replace("fit --config", f"fit {short} --config"), test):
        follow(f"```sh\n{line}\n```", tmp_path)
    shutil.copytree("runs/umls", "runs/quickstart")
    scope = follow(EXTEND, tmp_path)
    extended = SheafModel.load("extended")
    assert "gene_therapy" in extended.labels()
    assert len((tmp_path / "vectors.txt").read_text().splitlines()) == extended.num_entities + 1
    printed = capsys.readouterr().out
    assert "exact solution" in printed
    assert f"--query '{scope['query']}'" in EXTEND
    answers = extended.answer(scope["query"], k=3)
    assert printed.count(scope["query"]) == len(answers)
    pd.testing.assert_frame_equal(scope["larger"].answer(scope["query"], k=3), answers)
    pd.testing.assert_frame_equal(
        scope["larger"].predict_tails("gene_therapy", "treats"),
        extended.predict_tails("gene_therapy", "treats"),
    )
    assert "gene_therapy" not in SheafModel.load("smaller").labels()
    follow("```sh\n" + "\n".join(rest) + "\n```", tmp_path)
    pd.testing.assert_frame_equal(SheafModel.load("larger").answer(scope["query"], k=3), answers)


def test_the_space_of_the_chapter_on_runs_is_one(tmp_path):
    (space,) = (content for kind, content in blocks(RUNS) if kind == "yaml")
    (tmp_path / "space.yaml").write_text(space)
    options = SearchSpace.load("space.yaml").options
    assert set(options) == {"model.lr", "model.hidden_channels", "model.loss_args"}


def test_models_of_other_libraries(tmp_path, capsys):
    """With two epochs of PyKEEN: whether vectors are trained well changes nothing here."""
    pytest.importorskip("pykeen")
    assert IMPORT.count('"num_epochs": 50') == 1
    scope = follow(IMPORT.replace('"num_epochs": 50', '"num_epochs": 2'), tmp_path)
    countries = SheafModel.load("nations_larger")
    assert countries.labels()[-1] == "atlantis"
    theirs = scope["result"].model.entity_representations[0]().detach().numpy()
    known = scope["result"].training.entity_to_id
    ours = countries.vectors(list(known)).squeeze(1).numpy()
    np.testing.assert_allclose(ours, theirs[list(known.values())], atol=1e-6)
    people = SheafModel.load("people_larger")
    assert people.labels() == (*scope["entities"], "gus")
    again = SheafModel.load("people_from_python")
    pd.testing.assert_frame_equal(
        people.predict_tails("gus", "knows", 2), again.predict_tails("gus", "knows", 2)
    )
    assert SheafModel.load("arrays_larger").num_entities == 7
    assert SheafModel.load("openke_larger").labels() == people.labels()
    printed = capsys.readouterr()
    assert printed.err.count("are the exact solution") + printed.err.count("is the exact") == 4


def test_files_of_every_format(tmp_path, capsys):
    pytest.importorskip("pyoxigraph")
    pytest.importorskip("fastobo")
    config = "--config experiment/folder"
    follow(
        FORMATS.replace(config, f"{config} --config logger/csv --trainer.max_epochs 1"), tmp_path
    )
    printed = capsys.readouterr()
    (following,) = re.findall(r"```text\n(sheafprop fit .*)\n", FORMATS)
    assert f"next: {following}\n" in printed.out
    for note in re.findall(r"(?:note says |mean \()`(.*?)`", FORMATS, re.DOTALL):
        assert note.replace("\n", " ") in printed.err, note
    larger = SheafModel.load("anatomy_larger")
    assert larger.labels()[-1] == "UBERON:0002349"
    assert ["UBERON:0002349", "part_of", "UBERON:0000948"] in larger.facts().to_numpy().tolist()
    assert SheafModel.load("plants_larger").num_entities == 121
    people = pd.read_csv("people_vectors.csv", dtype=str, keep_default_na=False)
    assert people.columns.tolist()[:-1] == ["personId:ID(Person)", "name", "born:int", ":LABEL"]
    assert people.iloc[:, :4].to_numpy().tolist() == [
        ["1", "Ada", "1815", "Person;Author"],
        ["2", "Charles", "1791", "Person"],
        ["3", "", "", ""],
    ]
    assert people["vector:float[]"].str.count(";").tolist() == [7, 7, 7]
    assert "2 entities of the model" in printed.err
    assert "Person:1,label,Author" in (tmp_path / "library.csv").read_text()
    found = pd.read_csv("nodes.csv")
    assert found["label:ID"].tolist() == list(larger.labels())
    assert (tmp_path / "drugs.tsv").read_text() == "drug:aspirin\tdrug:acts_on\tUBERON:0000948\n"
    assert (
        "<http://purl.obolibrary.org/obo/UBERON_0000948> .\n" in (tmp_path / "drugs.nt").read_text()
    )
    assert "drug:aspirin,drug:note@en,old" in (tmp_path / "drugs.csv").read_text()
    assert (tmp_path / "found.nt").read_text().count("urn:sheafprop:score") == 2


def test_training_from_a_script(tmp_path, capsys):
    """With two epochs."""
    script = blocks(TRAINER)[0][1]
    assert len([line for line in script.splitlines() if line]) <= 22
    short = TRAINER.replace("max_epochs=50", "max_epochs=2").replace("n_epoch=10", "n_epoch=1")
    scope = follow(short, tmp_path)
    chosen = scope["SheafCompletion"].load_from_checkpoint("runs/script/checkpoints/best.ckpt")
    assert scope["model"].settings == chosen.selection.settings.to_dict()
    assert "gene_therapy" in scope["larger"].labels()
    assert "optimizer" not in scope["module"].hparams
    assert isinstance(scope["module"].optimizers().optimizer, torch.optim.AdamW)
    (run,) = tmp_path.glob("runs/umls/*")
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["optimizer_states"][0]["param_groups"][0]["decoupled_weight_decay"]
    assert main(["test", "--run", str(run)]) == 0
    assert main(["fit", "--resume", str(run), "--trainer.max_epochs=2"]) == 0


def test_splitting_a_graph(tmp_path, capsys):
    """With one epoch."""
    pytest.importorskip("pykeen")
    config = "--config experiment/folder"
    assert SPLIT.count(config) == 3
    short = f"{config} --config logger/csv --trainer.max_epochs 1"
    # The command that is printed is the one that the document gives next.
    follow(SPLIT.replace(f"sh\nsheafprop fit {config}", f"sh\nsheafprop fit {short}"), tmp_path)
    printed = capsys.readouterr().out
    for kind, content in blocks(SPLIT):
        if kind == "sh" and "fit" in content:
            assert f"next: {content.splitlines()[0]}\n" in printed
    (shown,) = re.findall(r"```text\n(.*?)```", SPLIT, flags=re.DOTALL)
    assert shown in printed
    for mode in ("semi-inductive", "fully-inductive"):
        record = json.loads((tmp_path / f"runs/umls_{mode[:-10]}/rotate/metrics.json").read_text())
        assert record["data"]["mode"] == mode
        assert record["test"]


@pytest.fixture
def tools(tmp_path):
    with shell(tmp_path):
        yield tmp_path / TOOLS


def test_many_experiments_overnight(tmp_path, tools):
    """With one epoch and one seed; then one run is made to look interrupted."""
    short = OVERNIGHT.replace("0 1 2 3 4 5 6 7 8 9", "0").replace(
        "max_epochs: 50", "max_epochs: 1\n  check_val_every_n_epoch: 1"
    )
    assert short.count("max_epochs: 1\n") == 2
    scope = follow(short, tmp_path)
    group = tmp_path / "runs" / "night"
    runs = ["rotate-seed0", "transe-seed0"]
    assert sorted(path.name for path in group.iterdir() if path.is_dir()) == runs
    assert set(scope["frame"]["run"]) == set(runs)
    assert {"RotatE + sheaf propagation", "TransE + sheaf propagation"} <= set(
        scope["frame"]["method"]
    )
    report = (group / "report.md").read_text()
    assert "RotatE" in report
    assert "TransE" in report
    for run in runs:
        assert len(list((group / run).glob("wandb/offline-run-*"))) >= 2
    before = json.loads((group / "transe-seed0" / "metrics.json").read_text())
    (group / "transe-seed0" / "metrics.json").unlink()
    shutil.rmtree(group / "transe-seed0" / "model")
    (tmp_path / "night" / "bad.yaml").write_text("defaults: [nowhere]\n")
    (command,) = re.findall(r"^bash scripts/run_many.*", short, flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", command.replace("night/rotate.yaml", "night/bad.yaml night/rotate.yaml")],
        env=environment(tools),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("failed: bad-seed0\n")
    assert "rotate-seed0 is done" in done.stdout
    after = json.loads((group / "transe-seed0" / "metrics.json").read_text())
    assert after["test"] == before["test"]
    assert not (group / "transe-seed0-2").exists()


def test_the_files_of_the_night_are_configurations(tmp_path):
    for kind, content in blocks(OVERNIGHT):
        if kind == "yaml":
            place = tmp_path / "night.yaml"
            place.write_text(content)
            assert load_config(str(place))["trainer"]["max_epochs"] == 50


def test_the_chapters_call_what_the_walk_throughs_explain():
    for start, chapter, document in (
        ("sheafprop import", EXTEND, IMPORT),
        ("sheafprop split", RUNS, SPLIT),
        ("bash scripts/run_many", RUNS, OVERNIGHT),
    ):
        calls = re.findall(rf"^{start}.*", chapter, flags=re.MULTILINE)
        assert calls
        assert all(f"\n{call}\n" in document for call in calls)


def test_relations_that_learn_through_the_diffusion(tmp_path):
    scope = follow(EPISODES, tmp_path)
    stored = scope["model"].stored()
    assert stored.episodes.settings.num_steps == 30
    assert stored.proximity.weight == 0.3
    report = (tmp_path / "runs" / "report.md").read_text(encoding="utf-8")
    assert "RotatE + episodes + proximity" in report
    assert "proximity alone" in report


def test_logical_queries(tmp_path, capsys):
    scope = follow(QUERIES, tmp_path)
    printed = capsys.readouterr()
    model, report = scope["model"], scope["report"]
    assert report.num_triples == 2
    query = "via(speaks, via(city_of, lyon))"
    (best,) = model.answer(query, 1)["answer"]
    assert best == "french"
    cities = "and(via(inverse(city_of), france), not(via(inverse(capital_of), france)))"
    assert model.answer(cities, 1)["answer"].iloc[0] == "nice"
    assert '"link": "predicted"' in printed.out
    assert "edge_energy" in printed.out
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    assert SheafModel.load("calibrated").stored().calibration is not None


def test_features_of_entities(tmp_path, capsys):
    """With two epochs."""
    short = FEATURES.replace(
        "fit --config experiment/folder",
        "fit --config experiment/folder --config logger/csv --trainer.max_epochs 2",
    )
    scope = follow(short, tmp_path)
    printed = capsys.readouterr()
    assert "without features" in (tmp_path / "runs/world/report.md").read_text(encoding="utf-8")
    alone = SheafModel.load("larger")
    assert alone.labels()[-1] == "newtown"
    assert scope["model"].feature_map.count > 60
    assert "(features)" in scope["larger"].explain("newtown")["head"].tolist()
    assert scope["out"].flatten().tolist() == pytest.approx([1.0, 6.0, 5.0])
    assert "[1.0, 6.0, 5.0]" in FEATURES
    assert "newtown" in printed.out


@pytest.fixture
def untrained():
    """A RotatE of random vectors in the place of the quickstart's."""
    data = PykeenDataset("umls").load()
    kge = RotatE(data.train.num_nodes, data.num_relations, 8, squared=True)
    kge.reset_parameters(0)
    stored = StoredModel.from_training(
        kge, data.train.entities, data.train.relations, data.train.triples
    )
    return SheafModel(stored).save("runs/quickstart/rotate")


def test_new_relations(untrained, tmp_path, capsys):
    follow(RELATIONS, tmp_path)
    printed = capsys.readouterr()
    assert "1 relation was fitted: 'relieves' to 6 facts" in printed.err
    described = SheafModel.load("extended").describe_relations().set_index("relation")
    assert described.loc["relieves", "origin"] == "fitted"
    assert described.loc["relieves", "facts"] == 7
    assert "painkiller\trelieves" in printed.out


def test_vectors_in_an_index(untrained, tmp_path, capsys):
    """Neighbours are predictions, before and after an extension, and after entities change."""
    scope = follow(SERVING, tmp_path)
    model, larger, index = scope["model"], scope["larger"], scope["index"]
    for head in ("virus", "alga", "mammal"):
        frame = model.predict_tails(head, "causes", 5, include_known=True)
        assert scope["nearest"](model, head, "causes", 5) == frame["tail"].tolist()
    frame = larger.predict_heads("treats", "neoplastic_process", 5, include_known=True)
    assert scope["heads"] == frame["head"].tolist()
    assert len(index) == larger.num_entities
    # Labels are found again under their keys after they were refined.
    refined = larger.extend([("gene_therapy", "affects", "virus")], mode="refine")
    scope["update"](index, refined, refined.report.refined)
    assert refined.report.refined == ["gene_therapy"]
    assert len(index) == larger.num_entities
    frame = refined.predict_tails("virus", "affects", refined.num_entities, include_known=True)
    # Of all entities, an approximate search may miss some: what is in the index is what counts.
    query = refined.query_vectors("virus", "affects")[0].float().numpy()
    keys = index.search(query, len(index), exact=True).keys
    assert [scope["labels"][key] for key in keys] == frame["tail"].tolist()
    restored = scope["Index"].restore("vectors.usearch")
    assert len(restored) == larger.num_entities
