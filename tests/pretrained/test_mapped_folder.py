import errno
import hashlib
import json
import os
import pickle
import re
import shutil
from contextlib import suppress

import pytest
import torch
from pandas.testing import assert_frame_equal
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from sheafprop import files as atomic
from sheafprop.errors import FormatError, SheafpropError
from sheafprop.files import StorageError
from sheafprop.kge import KGE_REGISTRY
from sheafprop.pretrained import mapped_folder
from sheafprop.pretrained.mapped_folder import EXTENDED, TABLE, open_rows, sharding
from sheafprop.pretrained.model_folder import load_model_folder
from sheafprop.pretrained.sheaf_model import SheafModel
from sheafprop.pretrained.tensor_file import StoredFile, write_tensors
from tests.pretrained.kills import killed_at
from tests.pretrained.models import ADRIFT, FACTS, sheaf_model

MORE = [("p", "next", "n0"), ("a2", "skip", "p"), ("q", "far", "a3")]


def saved(tmp_path, name="rotate", facts=FACTS, **arguments):
    """A mapped model and the one in memory that it was saved from."""
    model = sheaf_model(name, **arguments)
    model = model.extend(facts) if facts else model
    return SheafModel.load(model.save(tmp_path / "model", layout="mapped")), model


def parts_of(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.glob("*/*"))


def forge(folder, name, data):
    """Replaces a file and its fingerprint, as someone who knows the format could."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def same(one, other):
    """Whether two models say the same, in the same order, bit for bit."""
    assert one.labels() == other.labels()
    assert one.entities().equals(other.entities())
    assert one.facts().equals(other.facts())
    assert torch.equal(one.vectors(), other.vectors())
    assert repr(one) == repr(other)
    labels = [one.labels()[0], *one.labels()[-2:]]
    queries = [(a, "next", None) for a in labels] + [(None, r, labels[-1]) for r in one.relations]
    for k, include in ((2, False), (100, True)):
        found = [model.predict(queries, k, include_known=include) for model in (one, other)]
        assert found[0].equals(found[1])
    assert one.explain(labels[1]).equals(other.explain(labels[1]))
    triples = one.facts().to_numpy()[-5:]
    assert one.score(triples).equals(other.score(triples))


def same_answers(one, other):
    """Whether two models answer queries alike, up to rounding in products of other sizes."""
    first, last = one.labels()[0], one.labels()[-1]
    path = "via(next, via(inverse(far), a0))"
    for query, more in (
        (f"and(via(next, {first}), not(via(far, {last})))", {"derivations": 1}),
        (path, {}),
        (path, {"interior": "free", "prior": True}),
    ):
        found = [model.answer(query, 9, **more) for model in (one, other)]
        assert_frame_equal(*found, rtol=1e-12, atol=1e-12)


@pytest.fixture
def shards(request, monkeypatch):
    if request.param == "many files":
        monkeypatch.setattr(mapped_folder, "_SHARD_BYTES", 150)
        monkeypatch.setattr(mapped_folder, "_FACTS", 7)
        monkeypatch.setattr(mapped_folder, "_LABELS", 5)


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_a_mapped_model_says_what_the_one_in_memory_says(tmp_path, name):
    mapped, model = saved(tmp_path, name)
    assert mapped._state.is_mapped
    same(mapped, model)
    same(mapped.extend(MORE), model.extend(MORE))


@pytest.mark.parametrize("shards", ["one file", "many files"], indirect=True)
def test_answers_are_those_of_the_model_in_memory(tmp_path, shards):
    mapped, model = saved(tmp_path)
    same_answers(mapped, model)
    mapped, model = (m.extend(MORE).remove(["a4", "n1"]) for m in (mapped, model))
    same(mapped, model)
    same_answers(mapped, model)


@pytest.mark.parametrize(
    ("shards", "dtype", "propagation"),
    [("one file", torch.float32, "exact"), ("many files", torch.float64, "selected")],
    indirect=["shards"],
)
def test_a_chain_of_changes_comes_to_the_same(tmp_path, shards, dtype, propagation):
    """Saved and opened after each step, in place too, or not at all."""
    mapped, model = saved(tmp_path, "rotate", facts=None, dtype=dtype)
    steps = [
        lambda m: m.extend(FACTS + ADRIFT, propagation=propagation),
        lambda m: m.extend([("z", "next", "a1")], propagation=propagation),
        lambda m: m.remove(["a3", "n0", "z"]),
        lambda m: m.extend([("n0", "far", "a1"), ("a3", "skip", "n2"), ("y", "far", "a3")],
                           propagation=propagation),
        lambda m: m.extend([("n1", "next", "a9")], mode="refine"),
        lambda m: m.remove("n2", mode="refine"),
    ]  # fmt: skip
    for step in steps:
        mapped, model = step(mapped), step(model)
        same(mapped, model)
        mapped = SheafModel.load(mapped.save(tmp_path / "model", overwrite=True))
        same(mapped, model)
    plain = SheafModel.load(mapped.save(tmp_path / "plain", layout="plain"))
    assert not plain._state.is_mapped
    same(plain, model)
    SheafModel.load(tmp_path / "model", verify="full")
    assert os.listdir(tmp_path / "model") != []
    assert sorted(os.listdir(tmp_path)) == ["model", "plain"]


def test_a_label_that_was_removed_may_come_again(tmp_path):
    for model in saved(tmp_path):
        smaller = model.remove("a3")
        assert "a3" not in smaller.labels()
        with pytest.raises(SheafpropError, match="not among the 14 entities: 'a3'"):
            smaller.explain("a3")
        grown = smaller.extend([("a3", "next", "a5")])
        assert grown.labels()[-1] == "a3"
        assert grown.entities()["origin"].iloc[-1] == "extended"
        assert len(grown.explain("a3")) == 1


def test_everything_is_kept(tmp_path):
    mapped, model = saved(tmp_path)
    stored, own = load_model_folder(tmp_path / "model"), model.stored()
    assert stored.settings == own.settings
    assert stored.metrics == own.metrics
    assert torch.equal(stored.model.node_emb.weight, own.model.node_emb.weight)
    assert torch.equal(stored.prototypes.mean, own.prototypes.mean)
    assert torch.equal(stored.residual_variance, own.residual_variance)
    assert torch.equal(mapped.kge.node_emb.weight, own.model.node_emb.weight)
    assert mapped.kge.summarize_table is None
    head, rel, tail = stored.facts[:5].unbind(1)
    small = (head < 12) & (tail < 12)
    triples = head[small], rel[small], tail[small]
    assert torch.equal(mapped.kge(*triples), model.kge(*triples))


def test_nothing_is_read_before_it_is_asked_for(tmp_path, monkeypatch):
    """Only what the answer needs: neither the table nor a list of all labels or facts."""
    mapped, _ = saved(tmp_path)
    for owner, name in (
        ("entity_index.EntityIndex", "vocabulary"),
        ("entity_index.EntityIndex", "all_labels"),
        ("blocks.RowBlocks", "from_row"),
        ("stored_model.StoredModel", "__post_init__"),
    ):
        monkeypatch.setattr(f"sheafprop.pretrained.{owner}.{name}", None)
    monkeypatch.setattr("sheafprop.data.vocabulary.MAX_SUGGESTION_LABELS", 2)
    monkeypatch.setattr("sheafprop.pretrained.entity_index.MAX_SUGGESTION_LABELS", 2)
    grown = mapped.extend(MORE)
    assert grown.report.summary()
    grown.save(tmp_path / "grown")
    opened = SheafModel.load(tmp_path / "grown")
    opened.predict_tails("p", "next")
    opened.explain("p")
    opened.score([("p", "next", "a1")])
    opened.remove("p", mode="refine").save(tmp_path / "smaller")
    with pytest.raises(SheafpropError, match=r"'N0' \(did you mean 'n0'\?\)"):
        opened.explain("N0")


def test_an_extended_model_shares_the_files_of_the_old_one(tmp_path):
    mapped, _ = saved(tmp_path, facts=None)
    old = {p: os.stat(tmp_path / "model" / p).st_ino for p in parts_of(tmp_path / "model")}
    mapped.extend(FACTS).save(tmp_path / "grown")
    new = {p: os.stat(tmp_path / "grown" / p).st_ino for p in parts_of(tmp_path / "grown")}
    assert old.items() <= new.items()
    assert len(new) == 6
    # The same in place, and where the file system has no links.
    SheafModel.load(tmp_path / "grown").extend(MORE).save(tmp_path / "grown", overwrite=True)
    assert old.items() <= {
        (p, os.stat(tmp_path / "grown" / p).st_ino) for p in parts_of(tmp_path / "grown")
    }
    same(SheafModel.load(tmp_path / "grown"), sheaf_model("rotate").extend(FACTS).extend(MORE))


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    mapped, model = saved(tmp_path)

    def refuse(*args):
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    mapped.save(tmp_path / "copy")
    assert parts_of(tmp_path / "copy") == parts_of(tmp_path / "model")
    for name in parts_of(tmp_path / "model"):
        data = [(tmp_path / place / name).read_bytes() for place in ("model", "copy")]
        assert data[0] == data[1]
    same(SheafModel.load(tmp_path / "copy", verify="full"), model)


def test_a_model_that_was_replaced_meanwhile_is_saved_as_it_was_opened(tmp_path):
    mapped, model = saved(tmp_path)
    other = sheaf_model("transe").extend(MORE[2:])
    other.save(tmp_path / "model", overwrite=True, layout="mapped")
    mapped.save(tmp_path / "kept")
    same(SheafModel.load(tmp_path / "kept", verify="full"), model)


# The layout of torch.distributed.checkpoint ------------------------------------------------------


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_checkpoints_of_torch_are_read_and_written(tmp_path, monkeypatch, name):
    monkeypatch.setattr(mapped_folder, "_SHARD_BYTES", 150)
    _, model = saved(tmp_path, name)
    vectors = tmp_path / "model" / "vectors"
    assert len(list(vectors.iterdir())) > 3
    table = model.kge.node_emb.weight.detach()
    added = model.vectors()[12:]
    added = torch.view_as_real(added).flatten(2) if added.is_complex() else added
    state = {TABLE: torch.zeros_like(table), EXTENDED: torch.zeros_like(added)}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(vectors)), no_dist=True)
    assert torch.equal(state[TABLE], table)
    assert torch.equal(state[EXTENDED], added)

    # Two ranks, each of which writes its own shard.
    again = tmp_path / "again"
    for rank, part in enumerate(table.split(7)):
        writer = HuggingFaceStorageWriter(str(again / str(rank)), save_distributed=True)
        dcp.save({TABLE: part.clone()}, storage_writer=writer, no_dist=True)
    # What rank 1 of two writes differs from what a single one does by its offset.
    paths = [next((again / str(rank)).glob("*.safetensors")) for rank in range(2)]
    moved = paths[1].read_bytes().replace(b"[0, 0]", b"[7, 0]")
    paths[1].write_bytes(moved)
    files = [StoredFile.of(path, path.stat().st_size, "") for path in paths[::-1]]
    rows = open_rows(model.kge, files).from_row(0)[:, 0]
    assert torch.equal(rows, model.kge.entity_vectors())


@pytest.mark.parametrize(
    ("firsts", "sizes", "message"),
    [
        ([0, 8], [7, 5], "begins at row 8 .* where row 7 is next; a shard is missing"),
        ([0, 6], [7, 6], "begins at row 6 .* is there twice"),
        ([5], [7], "begins at row 5"),
        ([0], [11], "hold 11 of 12 rows"),
        ([0, 12], [12, 1], "hold 13 of 12 rows"),
        ([], [], "hold 0 of 12 rows"),
    ],
)
def test_shards_must_add_up(tmp_path, firsts, sizes, message):
    files = []
    for first, size in zip(firsts, sizes, strict=True):
        path = tmp_path / f"{first}.safetensors"
        rows = {TABLE: torch.zeros(size, 4, dtype=torch.float64)}
        files.append(StoredFile.of(path, *write_tensors(path, rows, sharding(TABLE, first, 2))))
    with pytest.raises((FormatError, ValueError), match=message):
        open_rows(sheaf_model("transe").kge, files)


@pytest.mark.parametrize(
    "info",
    ["no json", "[]", "{}", '{"node_emb.weight": 3}', '{"node_emb.weight": {"saved_offsets": 0}}']
    + [
        json.dumps({TABLE: {"saved_offsets": offsets}})
        for offsets in ([0], [0, 1], [-1, 0], [0.0, 0], ["0", 0], [True, 0])
    ],
)
def test_metadata_that_does_not_say_which_rows(tmp_path, info):
    path = tmp_path / "x.safetensors"
    written = write_tensors(path, {TABLE: torch.zeros(12, 4)}, {"DCP_SHARDING_INFO": info})
    with pytest.raises(FormatError, match="does not say which rows"):
        open_rows(sheaf_model("transe").kge, [StoredFile.of(path, *written)])


# Damage ------------------------------------------------------------------------------------------


def test_a_missing_truncated_or_longer_file_is_named(tmp_path):
    saved(tmp_path)
    folder = tmp_path / "model"
    for name in parts_of(folder):
        data = (folder / name).read_bytes()
        for change in (None, data[:-1], data + b"\0", b""):
            (folder / name).unlink()
            if change is not None:
                (folder / name).write_bytes(change)
            with pytest.raises(FormatError, match=rf"{name}' is refused: it (is missing|should)"):
                SheafModel.load(folder)
            (folder / name).write_bytes(data)
    SheafModel.load(folder)


def test_a_changed_byte_is_noticed_where_asked(tmp_path):
    saved(tmp_path)
    folder = tmp_path / "model"
    for name in parts_of(folder):
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1
        (folder / name).write_bytes(data)
        with pytest.raises(FormatError, match=rf"{name}' is refused: its content was changed"):
            SheafModel.load(folder, verify="full")
        data[-1] ^= 1
        (folder / name).write_bytes(data)
    for name in ("model.json", "relations.jsonl", "model.safetensors"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data.replace(b"e", b"f"))
        with pytest.raises(FormatError, match=rf"{name}' is refused: its content was changed"):
            SheafModel.load(folder)
        (folder / name).write_bytes(data)
    with pytest.raises(ValueError, match="'verify' must be"):
        SheafModel.load(folder, verify="some")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "vectors/../../secret.safetensors",
        "/secret.safetensors",
        "vectors//secret.safetensors",
        "vectors/.secret.safetensors",
        "labels/secret.safetensors",
        "facts/00001.npy",
        "vectors/sub/x.safetensors",
        "vectors/x.safetensors\n",
    ],
)
def test_the_manifest_cannot_point_outside(tmp_path, name):
    saved(tmp_path)
    manifest = json.loads((tmp_path / "model/manifest.json").read_bytes())
    manifest["files"][name] = manifest["files"].pop("facts/00001.safetensors")
    (tmp_path / "model/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"it was edited, see the entry of"):
        SheafModel.load(tmp_path / "model")


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_opening_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    for name in parts_of(tmp_path / "model"):
        data = (tmp_path / "model" / name).read_bytes()
        forge(tmp_path / "model", name, pickle.dumps(Bomb()))
        with pytest.raises(FormatError):
            SheafModel.load(tmp_path / "model")
        forge(tmp_path / "model", name, data)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("facts/00001", {"triples": torch.tensor([[0, 0, 99]] * 36, dtype=torch.int32)}),
        ("facts/00001", {"triples": torch.tensor([[0, 9, 0]] * 36, dtype=torch.int32)}),
        ("facts/00001", {"triples": torch.tensor([[-1, 0, 0]] * 36, dtype=torch.int32)}),
        ("facts/00001", {"by_head.fact": torch.full((36,), 10**6, dtype=torch.int32)}),
        ("facts/00001", {"by_tail.fact": torch.full((36,), -3, dtype=torch.int32)}),
        ("facts/00001", {"by_head.start": torch.tensor([0, *[2**31 - 9] * 11, 36]).int()}),
    ],
)
def test_facts_that_were_made_up_are_refused_where_they_are_used(tmp_path, name, tensors):
    mapped, _ = saved(tmp_path, facts=None)
    own = mapped._state.facts.blocks[0].tensors()
    assert {key: value.shape for key, value in tensors.items()} == {
        key: own[key].shape for key in tensors
    }
    path = tmp_path / "x"
    write_tensors(path, own | tensors)
    forge(tmp_path / "model", f"{name}.safetensors", path.read_bytes())
    with pytest.raises(FormatError, match=rf"{name}.safetensors' is refused"):
        SheafModel.load(tmp_path / "model", verify="full")
    opened = SheafModel.load(tmp_path / "model")

    def use():
        for label in opened.labels():
            opened.explain(label)
            opened.predict_tails(label, "next")

    with pytest.raises(FormatError, match=rf"{name}.safetensors' is refused: .* out of range"):
        use()


def test_files_must_fit_each_other(tmp_path):
    saved(tmp_path)
    folder = tmp_path / "model"
    for gone, message in (
        ("labels/00001.safetensors", "labels for 15 vectors"),
        ("facts/00001.safetensors", "'facts' is missing"),
        ("vectors/shard-00002-model-00001-of-00001.safetensors", "labels for 12 vectors"),
        ("vectors/shard-00001-model-00001-of-00001.safetensors", "0 of 12 rows"),
    ):
        shutil.copytree(folder, tmp_path / "other")
        manifest = json.loads((folder / "manifest.json").read_bytes())
        del manifest["files"][gone]
        (tmp_path / "other/manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(FormatError, match=f"other' agrees .*{message}"):
            SheafModel.load(tmp_path / "other")
        shutil.rmtree(tmp_path / "other")


# Interruptions -----------------------------------------------------------------------------------


def _count_calls(monkeypatch, limit, error):
    """Lets ``limit`` calls that change the disk through and then fails every one."""
    calls = []

    def guard(original):
        def guarded(*args, **kwargs):
            calls.append(original)
            if len(calls) > limit:
                raise error
            return original(*args, **kwargs)

        return guarded

    monkeypatch.setattr(atomic, "open", guard(open), raising=False)
    for name in ("fsync", "replace", "mkdir"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
    return calls


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_failure_at_any_moment_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch, error):
    saved(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "kept")
    folder = tmp_path / "model"
    for limit in range(1000):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "kept", folder)
        grown = SheafModel.load(folder).extend(MORE)
        with monkeypatch.context() as patch:
            calls = _count_calls(patch, limit, error)
            with suppress(StorageError, KeyboardInterrupt):
                grown.save(folder, overwrite=True)
        if len(calls) <= limit:
            break
        names = sorted(os.listdir(tmp_path))
        if ".model.previous" in names:
            # Even putting the old folder back was refused.
            assert not folder.exists()
            os.rename(tmp_path / ".model.previous", folder)
        assert SheafModel.load(folder, verify="full").num_entities in (15, 17)
        assert sorted(os.listdir(tmp_path)) == ["kept", "model"]
    assert limit > 20
    assert SheafModel.load(folder, verify="full").num_entities == 17


def grow(folder):
    SheafModel.load(folder).extend(MORE).save(folder, overwrite=True)


@pytest.mark.parametrize("moment", [5, 45, 87, 91, 110])
def test_a_process_killed_at_any_moment_leaves_the_old_model_or_the_new_one(tmp_path, moment):
    folder = tmp_path / "model"
    saved(tmp_path)
    assert killed_at(moment, grow, folder)
    previous = tmp_path / ".model.previous"
    if not folder.exists():
        # Between the two renames: the error names the folder to rename.
        with pytest.raises(FormatError, match=re.escape(f"'{previous}'; rename it")):
            SheafModel.load(folder)
        previous.rename(folder)
    model = SheafModel.load(folder, verify="full")
    assert model.num_entities in (15, 17)
    (model.extend(MORE) if model.num_entities == 15 else model).save(folder, overwrite=True)
    assert SheafModel.load(folder, verify="full").num_entities == 17
    assert not previous.exists()


def test_a_diverged_vector_is_not_written(tmp_path):
    _, model = saved(tmp_path)
    bad = torch.full((1, 1, 4), torch.nan, dtype=torch.complex128)
    state = model._state.rewrite(torch.tensor([13]), bad, ["extended"])
    with pytest.raises(SheafpropError, match="the row of entity 'n1'"):
        SheafModel._of(state).save(tmp_path / "bad", layout="mapped")
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_other_peoples_files_are_never_overwritten(tmp_path):
    mapped, _ = saved(tmp_path)
    for name in ("vectors/notes.txt", "labels/mine.safetensors", "vectors/deep", "more/x"):
        place = tmp_path / "model" / name
        place.parent.mkdir(exist_ok=True)
        place.mkdir() if name.endswith("deep") else place.write_text("mine")
        with pytest.raises(ValueError, match=rf"is not overwritten, since it holds '{name}"):
            mapped.save(tmp_path / "model", overwrite=True)
        assert place.exists()
        place.rmdir() if name.endswith("deep") else place.unlink()
        if name.startswith("more"):
            place.parent.rmdir()
    mapped.save(tmp_path / "model", overwrite=True)
