import json
from dataclasses import replace

import pytest

from sheafprop.cli.main import main
from sheafprop.data import write_triples
from sheafprop.pretrained.sheaf_model import SheafModel
from tests.cli.commands import failing, output, table
from tests.pretrained.models import FACTS, stored_model
from tests.toy import write_folder


def test_inspect(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    write_triples(
        folder / "train.txt",
        [("a", "likes", "b"), ("a", "likes", "b"), ("b", "liked_by", "a"), ("c", "likes", "c")],
    )
    write_triples(
        folder / "inference.txt",
        [("a", "likes", "n"), ("m", "new", "o"), ("b", "likes", "a"), ("a", "likes", "b")],
    )
    text = output(capsys, "inspect", folder, "--figure", tmp_path / "f.png").out
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(output(capsys, "inspect", folder, "--json").out)
    train = found["files"]["train.txt"]
    assert train == {
        "triples": 4,
        "entities": 3,
        "relations": 2,
        "duplicates": 1,
        "self_loops": 1,
        "pairs_in_both_directions": 1,
        "components": 2,
        "largest_components": [2, 1],
    }
    assert found["graph"] == {
        "known_entities": 2,
        "new_entities": 3,
        "components": 2,
        "components_without_anchor": 1,
        "anchors_of_largest": [2, 0],
        "components_by_anchors": {"0": 1, "2": 1},
    }
    assert found["unseen_relations"] == {"inference.txt": {"new": 1}}
    overlaps = {row["what"]: row["count"] for row in found["overlaps"]}
    assert overlaps == {"triples": 1, "pairs in swapped order": 2, "entity labels": 2}
    inverse = {(row["relation"], row["inverse"]) for row in found["inverse_relations"]}
    assert ("liked_by", "likes") in inverse
    assert found["relations"] == {"likes": 6, "liked_by": 1, "new": 1}
    assert sum(found["degrees"].values()) == 6
    for word in (
        "duplicates: 1",
        "self loops: 1",
        "looks like the inverse",
        "without anchor: 1",
        "components by anchors: 1 with 0, 1 with 2",
        "triples of a relation: 'likes': 6, 'liked_by': 1, 'new': 1; 3 relations in all, 2 with a",
        "2 entity labels in both train.txt and inference.txt",
        "1 triple in both train.txt and inference.txt",
    ):
        assert word in text
    swaps = [(f"{a}{i}", f"r{i}", f"{b}{i}") for i in range(7) for a, b in ("xy", "yx")]
    write_triples(tmp_path / "symmetric.txt", swaps)
    text = output(capsys, "inspect", tmp_path / "symmetric.txt").out
    assert text.count("looks symmetric: 100 % of its pairs") == 5
    assert "\nand 2 more such pairs of relations (--json has all)\n" in text
    one = output(capsys, "inspect", folder / "train.txt").out
    assert "triples: 4" in one
    (tmp_path / "none").mkdir()
    assert "neither files of triples" in failing(capsys, "inspect", tmp_path / "none")
    assert "cannot be read" in failing(capsys, "inspect", tmp_path / "nowhere.txt")
    (folder / "inference.txt").write_text("\n")
    assert "inference.txt\n  triples: 0\n" in output(capsys, "inspect", folder).out
    (folder / "train.txt").write_text("")
    assert "all 2 files are empty" in failing(capsys, "inspect", folder)
    (tmp_path / "x.csv").write_text('object,predicate,subject\n"b, c",likes,a\n')
    words = ["inspect", tmp_path / "x.csv", "--columns", "2,1,0", "--header", "--json"]
    assert json.loads(output(capsys, *words).out)["relations"] == {"likes": 1}


def test_inspect_a_model(tmp_path, capsys, model, facts):
    output(capsys, "extend", model, facts, "--out", tmp_path / "run" / "model")
    printed = output(capsys, "inspect", tmp_path / "run").out
    for word in (
        "method: RotatE",
        "entities: 15",
        "origins: trained: 12, extended: 3",
        "relations: 3",
        "iterations: 5",
        f"triples: {36 + len(set(FACTS))}",
    ):
        assert word in printed
    grown = SheafModel.load(tmp_path / "run")
    found = json.loads(output(capsys, "inspect", tmp_path / "run" / "model", "--json").out)
    assert found["model"]["origins"] == {"trained": 12, "extended": 3}
    assert found["model"]["chosen_propagation"] == grown.settings
    rows = table(output(capsys, "inspect", tmp_path / "run", "--relations").out)
    assert rows.set_index("relation")["triples"].to_dict() == found["relations"]
    assert found["relations"] == grown.facts()["relation"].value_counts().to_dict()
    assert "is a model" in failing(capsys, "inspect", tmp_path / "run", "--header")
    # Relations that no fact has are the model's too.
    base = stored_model("transe", settings=None)
    SheafModel(replace(base, facts=base.facts[:0])).save(tmp_path / "bare")
    assert "None" not in output(capsys, "inspect", tmp_path / "bare").out
    rows = table(output(capsys, "inspect", tmp_path / "bare", "--relations").out)
    assert rows.to_numpy().tolist() == [["next", 0], ["skip", 0], ["far", 0]]
    assert "facts\n  triples: 0\n" in output(capsys, "inspect", tmp_path / "bare").out


def test_inspect_verifies_what_opening_does_not_read(tmp_path, capsys, facts, model):
    SheafModel.load(model).save(tmp_path / "mapped", layout="mapped")
    said = output(capsys, "inspect", tmp_path / "mapped", "--verify").out
    assert "as they were written" in said
    shard = next((tmp_path / "mapped" / "vectors").glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    output(capsys, "inspect", tmp_path / "mapped")
    assert shard.name in failing(capsys, "inspect", tmp_path / "mapped", "--verify")
    assert "manifest.json" in failing(capsys, "inspect", facts, "--verify")
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(tmp_path / "mapped"), "--verify", "--json"])
    assert "give it alone" in capsys.readouterr().err


def test_inspect_skips_files_without_triples_and_names_them(tmp_path, capsys):
    folder = write_folder(tmp_path / "data", "semi-inductive")
    (folder / "entity2id.txt").write_text("2\na0\t0\na1\t1\n")
    (folder / "train2id.txt").write_text("2\n0 1 0\n1 0 0\n")
    (folder / "README.txt").write_text("All triples, by hand.\n")
    printed = output(capsys, "inspect", folder).out
    assert "no triples in README.txt, entity2id.txt, train2id.txt: skipped" in printed
    assert json.loads(output(capsys, "inspect", folder, "--json").out)["skipped"] == [
        "README.txt",
        "entity2id.txt",
        "train2id.txt",
    ]
    # A file that does hold triples, or is one of the parts, is not skipped for a fault.
    (folder / "more.txt").write_text("a0\tnext\ta1\na1 next a2\n")
    assert "more.txt, line 2" in failing(capsys, "inspect", folder)
    (folder / "more.txt").unlink()
    (folder / "valid.txt").write_text("a1 next a2\n")
    assert "valid.txt, line 1" in failing(capsys, "inspect", folder)


def test_nodes_and_literals_beside_triples_are_skipped(tmp_path, capsys):
    write_triples(tmp_path / "facts.tsv", [("a", "likes", "b"), ("b", "likes", "a")])
    files = {
        "literals.csv": "entity,property,value\na,name,one\n",
        "people.csv": "id:ID(P),name,:LABEL\n1,Ada,A\n",
        "nodes.tsv": "id\tcategory\tname\nX:1\tA\tone\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    printed = output(capsys, "inspect", tmp_path).out
    assert f"no triples in {', '.join(sorted(files))}: skipped" in printed
    for name in files:
        assert "this file holds" in failing(capsys, "inspect", tmp_path / name)
