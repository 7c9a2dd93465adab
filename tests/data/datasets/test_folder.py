import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sheafprop.data import FolderDataset, InductiveDataset, build_dataset, write_triples
from sheafprop.errors import DataError, UnknownRelationError

FILES = {
    "train.txt": [("a", "r", "b"), ("b", "s", "c"), ("c", "r", "a"), ("a", "s", "b")],
    "valid.txt": [("b", "r", "c")],
    "inference.txt": [("x", "s", "a"), ("x", "r", "y")],
    "inference_valid.txt": [("y", "r", "a")],
    "inference_test.txt": [("y", "s", "x"), ("y", "s", "a")],
}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "mine"
    root.mkdir()
    for name, triples in FILES.items():
        write_triples(root / name, triples)
    return root


@pytest.mark.parametrize(
    ("mode", "counts"), [("semi-inductive", (5, 6, 3)), ("fully-inductive", (3, 2, 0))]
)
def test_all_files(folder, mode, counts):
    dataset = FolderDataset(folder, mode)
    assert isinstance(dataset, InductiveDataset)
    data = dataset.load()
    assert (data.name, data.mode) == ("mine", mode)
    boundary = int(data.boundary_mask.sum())
    assert (data.inference.num_nodes, data.inference.num_edges, boundary) == counts
    assert (len(data.train_valid), len(data.valid), len(data.test)) == (1, 1, 2)
    assert repr(dataset) == "FolderDataset(mine)"


@pytest.mark.parametrize("name", ["valid.txt", "inference_valid.txt", "inference_test.txt"])
@pytest.mark.parametrize("state", ["missing", "empty"])
def test_optional_files(folder, name, state):
    (folder / name).unlink()
    if state == "empty":
        (folder / name).write_text("\n")
    data = FolderDataset(folder, "semi-inductive").load()
    parts = dict(zip(list(FILES), [0, data.train_valid, 0, data.valid, data.test], strict=True))
    assert parts.pop(name) is None
    assert None not in parts.values()
    note = f"{name} is missing" if state == "missing" else f"{name} is empty"
    assert note in data.report["notes"]


def test_a_graph_in_the_place_of_a_folder_is_answered_with_the_commands_to_type(tmp_path):
    graph = tmp_path / "a b" / "my graph.obo.gz"
    graph.parent.mkdir()
    graph.write_text("")
    for place in (graph, graph.parent):
        dataset = FolderDataset(place, "fully-inductive", columns=("a", "b", "c"), format="csv")
        with pytest.raises(
            DataError, match=r"the data folder is a file|train\.txt and inference"
        ) as caught:
            dataset.load()
        split = f"split '{graph}' --out 'my graph_split' --mode fully-inductive --columns=a,b,c "
        assert f"sheafprop {split}--input-format=csv && sheafprop fit " in str(caught.value)
    (graph.parent / "other.tsv").write_text("")
    with pytest.raises(DataError) as caught:
        FolderDataset(graph.parent, "fully-inductive").load()
    assert "split" not in str(caught.value)


@pytest.mark.parametrize("name", ["train.txt", "inference.txt"])
def test_required_files(folder, name):
    (folder / name).write_text("")
    with pytest.raises(DataError, match=f"{name}: the file holds no triple"):
        FolderDataset(folder, "semi-inductive").load()
    (folder / name).rename(folder / f"my_{name}")
    with pytest.raises(DataError, match=rf"{name} missing\. Expected .*\(found .*my_{name}.*\)"):
        FolderDataset(folder, "semi-inductive").load()


@pytest.mark.parametrize("name", ["inference.txt", "inference_valid.txt", "valid.txt"])
def test_a_folder_in_the_place_of_a_file_is_named(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(DataError, match=rf"{name} must be a file of triples \(got a folder\)"):
        FolderDataset(folder, "semi-inductive").load()


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        FolderDataset(tmp_path / "none", "semi-inductive").load()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a folder"):
        FolderDataset(tmp_path / "pipe", "semi-inductive").load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"train.txt and inference.txt missing.*\(found nothing\)"):
        FolderDataset(tmp_path / "empty", "semi-inductive").load()


def test_paths_are_resolved_when_given(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    dataset = FolderDataset("mine", "semi-inductive")
    monkeypatch.chdir("/")
    assert dataset.load().name == "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FolderDataset(Path("~/mine"), "semi-inductive").root == folder
    assert FolderDataset(os.fspath(folder) + "/.", "semi-inductive").load().name == "mine"


def test_malformed_line_is_named(folder):
    with open(folder / "inference_test.txt", "a") as file:
        file.write("\ny s x\n")
    with pytest.raises(DataError, match=r"inference_test\.txt, line 4: expected 3"):
        FolderDataset(folder, "semi-inductive").load()


def test_unknown_relations(folder):
    write_triples(folder / "inference.txt", [*FILES["inference.txt"], ("x", "q", "a")])
    with pytest.raises(UnknownRelationError, match="'q': 1 triple;"):
        FolderDataset(folder, "semi-inductive").load()
    dataset = FolderDataset(folder, "semi-inductive", on_unknown_relation="drop")
    assert dataset.load().report["dropped_triples"] == {"observed": 1}


def test_overlaps(folder):
    write_triples(folder / "inference_test.txt", FILES["inference.txt"])
    with pytest.warns(UserWarning, match="2 triples occur in both the observed and the test"):
        FolderDataset(folder, "semi-inductive").load()


def test_training_triples_can_be_held_out(folder):
    train = [(f"e{i}", f"r{j}", f"e{(i + j) % 10}") for i in range(10) for j in range(1, 5)]
    write_triples(folder / "train.txt", train)
    write_triples(folder / "inference.txt", [("new", "r1", "e0")])
    write_triples(folder / "inference_valid.txt", [("new", "r1", "e1")])
    write_triples(folder / "inference_test.txt", [("new", "r2", "e1")])
    (folder / "valid.txt").unlink()
    data = FolderDataset(folder, "semi-inductive", hold_out=0.1).load()
    assert len(data.train_valid) == 4
    assert (data.train.num_nodes, data.train.num_relations, data.train.num_edges) == (10, 4, 36)
    assert any("4 training triples held out" in note for note in data.report["notes"])
    other = FolderDataset(folder, "semi-inductive", hold_out=0.1, seed=1).load()
    held = [
        {
            tuple(d.train.entities.labels_of(row[::2]) + d.train.relations.labels_of(row[1:2]))
            for row in d.train_valid
        }
        for d in (data, other)
    ]
    assert held[0] != held[1]
    # A validation file goes first.
    write_triples(folder / "valid.txt", [("e0", "r1", "e5")])
    data = FolderDataset(folder, "semi-inductive", hold_out=0.1).load()
    assert (len(data.train_valid), data.train.num_edges) == (1, 40)


@pytest.mark.parametrize("hold_out", [-0.1, 1.0])
def test_the_share_held_out_is_named(tmp_path, hold_out):
    with pytest.raises(ValueError, match="'hold_out' must be"):
        FolderDataset(tmp_path, "semi-inductive", hold_out=hold_out)


def test_one_unknown_relation_is_one_and_the_option_is_named(folder):
    write_triples(folder / "inference_test.txt", [("x", "unheard", "a")])
    with pytest.raises(DataError, match="1 relation has no training triple") as caught:
        FolderDataset(folder, "semi-inductive").load()
    assert "--data.on_unknown_relation=drop" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("inference.txt", "x y z\n", "inference.txt, line 1"),
        ("inference_test.txt", "x\tunheard\ta\n", "'unheard': 1 triple"),
        ("inference.txt", None, "inference.txt missing"),
    ],
)
def test_files_are_checked_without_torch(folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    code = (
        "import sys\n"
        "from sheafprop.data import build_dataset\n"
        f"data = build_dataset('folder', root={str(folder)!r}, mode='semi-inductive')\n"
        "try:\n    data.check()\n"
        "except ValueError as error:\n    print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert message in done.stdout


@pytest.mark.parametrize(
    ("missing", "close"),
    [
        ("inference_valid.txt", "inference-validation.txt"),
        ("inference_valid.txt", "Dev_Inference.tsv"),
        ("inference_valid.txt", "valid_ind.txt"),
        ("inference_test.txt", "test_inference.txt.gz"),
        ("inference_test.txt", "inference_tests.txt"),
        ("valid.txt", "validation.txt"),
    ],
)
def test_close_names_are_pointed_out(folder, missing, close):
    (folder / missing).rename(folder / close)
    said = f"'{close}' is ignored; to use it, rename it to {missing}"
    dataset = FolderDataset(folder, "semi-inductive")
    assert said in dataset.load().report["notes"]
    with pytest.warns(UserWarning, match=said.replace(".", r"\.")):
        dataset.check()


def test_close_names_of_files_that_are_needed_are_in_the_error(folder):
    (folder / "inference.txt").rename(folder / "inferences.txt")
    with pytest.raises(DataError, match=r"inference.txt missing.*'inferences.txt' is ignored"):
        FolderDataset(folder, "semi-inductive").load()


def test_other_files_are_left_alone_and_counted(folder, recwarn):
    (folder / "entity2id.txt").write_text("3\na\t0\nb\t1\nc\t2\n")
    (folder / "train2id.txt").write_text("1\n0 1 0\n")
    (folder / "README").write_text("three files\n")
    (folder / "split.json").write_text("{}")  # of 'sheafprop split': nothing to mention
    data = FolderDataset(folder, "semi-inductive").load()
    notes = data.report["notes"]
    assert "3 other files ignored (README, entity2id.txt, train2id.txt)" in notes
    assert not any("call it" in note for note in notes)
    FolderDataset(folder, "semi-inductive").check()
    assert not recwarn.list


def test_files_are_read_by_the_options_and_by_their_names(folder):
    want = FolderDataset(folder, "semi-inductive").load()
    for name, triples in FILES.items():
        lines = ["to;n;kind;from", *(f"{t};7;{r};{h}" for h, r, t in triples)]
        packed = gzip.compress("\n".join(lines).encode())
        (folder / name).unlink()
        (folder / name.replace(".txt", ".csv.gz")).write_bytes(packed)
    given = {"columns": "from,kind,to", "delimiter": ";"}
    got = FolderDataset(folder, "semi-inductive", **given).load()
    for part in ("train_valid", "valid", "test"):
        assert getattr(got, part).equal(getattr(want, part))
    assert got.inference.triples.equal(want.inference.triples)
    assert got.train.entities == want.train.entities
    with pytest.raises(DataError, match=r"train.csv.gz, line 1: expected 3"):
        FolderDataset(folder, "semi-inductive").load()
    with pytest.raises(ValueError, match="'header' must be"):
        FolderDataset(folder, "semi-inductive", header="perhaps")


@pytest.mark.parametrize("name", ["columns", "header", "delimiter", "input_format"])
def test_reading_options_go_with_folders(name):
    with pytest.raises(ValueError, match=rf"data\.{name} applies only to .*got dataset='pykeen'"):
        build_dataset("pykeen", name="umls", **{name: "0,1,2"})


def test_two_files_for_one_part_are_refused(folder):
    (folder / "train.tsv").write_bytes((folder / "train.txt").read_bytes())
    with pytest.raises(DataError, match=r"train.txt is ambiguous \(train.tsv, train.txt\)"):
        FolderDataset(folder, "semi-inductive").load()


def test_a_file_of_another_format_is_refused_by_name(folder):
    (folder / "train.txt").rename(folder / "train.n3")
    with pytest.raises(DataError, match=r"train\.n3: this is Notation3"):
        FolderDataset(folder, "semi-inductive").load()


def test_a_header_is_refused_in_any_file_unless_its_fields_are_known(folder):
    for name in ("train.txt", "inference_test.txt"):
        content = (folder / name).read_text()
        (folder / name).write_text("vertex\tlink\tother\n" + content + "y\tr\tx\n")
        with pytest.raises(DataError, match=f"{name}, line 1: this row occurs nowhere else"):
            FolderDataset(folder, "semi-inductive").load()
        (folder / name).write_text(content)
    # Sparse files share labels with the training triples only.
    (folder / "inference_test.txt").write_text("x\tr\ta\ny\ts\tb\n")
    assert len(FolderDataset(folder, "semi-inductive").load().test) == 2


@pytest.mark.parametrize("prefixes", [None, "none"])
def test_files_of_rdf_are_parts_like_any_other(tmp_path, prefixes):
    wikidata = "http://www.wikidata.org/entity/"
    lines = [f"<{wikidata}Q{i}> <http://e/p> <{wikidata}Q{i + 1}> ." for i in range(4)]
    (tmp_path / "train.nt").write_text("\n".join([*lines, f'<{wikidata}Q1> <http://e/n> "x" .']))
    text = f"@prefix w: <{wikidata}> .\nw:Q9 <http://e/p> w:Q1, w:Q2 .\n"
    (tmp_path / "inference.ttl.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.warns(UserWarning, match=r"train\.nt: read as N-Triples; skipped: literals \(1\)"):
        data = FolderDataset(tmp_path, "semi-inductive", prefixes=prefixes).load()
    begin = "wd:" if prefixes is None else wikidata
    assert f"{begin}Q9" in data.inference.entities.labels
    assert int(data.train.num_edges) == 4


def test_alternative_ids_of_an_ontology_mean_its_terms_in_every_part(tmp_path):
    terms = "".join(f"[Term]\nid: X:{i}\nis_a: X:{(i + 1) % 5}\n" for i in range(5))
    (tmp_path / "train.obo").write_text(terms.replace("id: X:1\n", "id: X:1\nalt_id: X:91\n"))
    (tmp_path / "inference.tsv").write_text("N:1\tis_a\tX:91\nN:1\tis_a\tX:2\n")
    iri = "<http://purl.obolibrary.org/obo/{}>".format
    tail = iri("X_2")
    (tmp_path / "inference_test.nt").write_text(
        f"<http://n/1> <http://www.w3.org/2000/01/rdf-schema#subClassOf> {tail} .\n"
    )
    prefixes = {"X": "http://purl.obolibrary.org/obo/X_", "N": "http://n/"}
    dataset = FolderDataset(tmp_path, "semi-inductive", prefixes=prefixes)
    with pytest.warns(UserWarning, match=r"inference\.tsv: alternative ids from another .*\(1\)"):
        data = dataset.load()
    assert set(data.inference.entities.labels) == {"N:1", *(f"X:{i}" for i in range(5))}
    assert data.train.relations.labels == ("is_a",)
    assert len(data.test) == 1
