import dataclasses
import errno
import hashlib
import json
import os
import pickle
import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from sheafprop import files as atomic
from sheafprop.data import KnowledgeGraph, Vocabulary
from sheafprop.errors import DivergenceError, FormatError
from sheafprop.files import StorageError
from sheafprop.kge import KGE_REGISTRY, build_model
from sheafprop.pretrained import model_folder
from sheafprop.pretrained.model_folder import (
    load_model_folder,
    write_model_folder,
)
from sheafprop.pretrained.stored_model import StoredModel
from sheafprop.sheaf import edge_energy

LABELS = (
    "plain",
    "with\nline break",
    "tab\t",
    "日本語",
    "",
    ' "quoted" \\',
    "\u2028\x85",
    "\ud800",
)
RELATIONS = ("likes", "\r\n", "never used")
SETTINGS = {"start": "mixed", "step_size": 0.9, "iterations": 8, "normalize_output": True}
METRICS = {"test": [{"protocol": "full", "metrics": {"mrr": 0.25}}]}
CONTENT = [
    "entities.jsonl",
    "facts.npy",
    "metrics.json",
    "model.json",
    "model.safetensors",
    "relations.jsonl",
]


def make_parts(name="rotate", **config):
    entities = Vocabulary(LABELS, kind="entities")
    relations = Vocabulary(RELATIONS, kind="relations")
    g = torch.Generator().manual_seed(0)
    triples = torch.stack(
        [
            torch.randint(0, len(LABELS), (20,), generator=g),
            torch.randint(0, 2, (20,), generator=g),
            torch.randint(0, len(LABELS), (20,), generator=g),
        ],
        dim=1,
    ).unique(dim=0)
    model = build_model(name, num_nodes=len(LABELS), num_relations=3, hidden_channels=4, **config)
    model.reset_parameters(seed=1)
    return {
        "model": model,
        "entities": entities,
        "relations": relations,
        "train": KnowledgeGraph.from_triples(triples, entities=entities, relations=relations),
        "settings": SETTINGS,
        "metrics": METRICS,
    }


def save_model_folder(folder, *, train, overwrite=False, **parts):
    stored = StoredModel.from_training(facts=train.triples, **parts)
    return write_model_folder(folder, stored, overwrite=overwrite)


@pytest.fixture
def folder(tmp_path):
    return save_model_folder(tmp_path / "model", **make_parts())


def forge(folder, name, data):
    """Replaces a file and its fingerprint, as someone who knows the format could."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def bits(tensor):
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.detach().numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_everything_comes_back_bit_for_bit(tmp_path, name, dtype):
    parts = make_parts(name, p=float("inf"), entity_constraint=None)
    model, train = parts["model"].to(dtype), parts["train"]
    save_model_folder(tmp_path / "model", **parts)
    stored = load_model_folder(tmp_path / "model")

    assert type(stored.model) is type(model)
    assert stored.model.config() == model.config()
    state = stored.model.state_dict()
    assert state.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert state[key].dtype == dtype
        assert bits(state[key]) == bits(value)
    assert all(parameter.requires_grad for parameter in stored.model.parameters())
    assert stored.entities.labels == LABELS
    assert stored.relations.labels == RELATIONS
    assert stored.origins == ("trained",) * len(LABELS)
    assert torch.equal(stored.facts, train.triples)
    assert stored.settings == SETTINGS
    assert stored.metrics == METRICS
    head, relation, tail = train.triples.unbind(1)
    score = stored.model(head, relation, tail)
    assert torch.equal(score, model(head, relation, tail))


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
def test_statistics_are_those_of_the_training_triples(tmp_path, name):
    parts = make_parts(name)
    model = parts["model"]
    stored = load_model_folder(save_model_folder(tmp_path / "model", **parts))
    x, sheaf = model.entity_vectors().detach(), model.sheaf()
    prototypes = stored.prototypes
    assert prototypes.mean.is_complex() == model.is_complex
    head, relation, tail = parts["train"].triples.unbind(1)
    for r in range(3):
        rows = relation == r
        assert prototypes.count[[r, 3 + r]].tolist() == [int(rows.sum())] * 2
        if not rows.any():
            assert bool((prototypes.mean[[r, 3 + r]] == 0).all())
            assert stored.residual_variance[r] == 0
            continue
        torch.testing.assert_close(prototypes.mean[r], x[tail[rows]].mean(0))
        torch.testing.assert_close(prototypes.mean[3 + r], x[head[rows]].mean(0))
        energy = edge_energy(x, torch.stack([head, tail])[:, rows], relation[rows], sheaf)
        torch.testing.assert_close(stored.residual_variance[r], energy.mean().detach())


def test_a_repeated_fact_counts_once_in_the_statistics(tmp_path):
    parts = make_parts()
    once = load_model_folder(save_model_folder(tmp_path / "once", **parts))
    triples = torch.cat([parts["train"].triples, parts["train"].triples[3:9]])
    parts["train"] = KnowledgeGraph.from_triples(
        triples, entities=parts["entities"], relations=parts["relations"]
    )
    often = load_model_folder(save_model_folder(tmp_path / "often", **parts))
    assert torch.equal(often.facts, once.facts)
    assert torch.equal(often.prototypes.count, once.prototypes.count)
    assert torch.equal(often.prototypes.mean, once.prototypes.mean)
    assert torch.equal(often.residual_variance, once.residual_variance)


def test_the_layout_is_plain_files(folder):
    assert sorted(os.listdir(folder)) == sorted([*CONTENT, "manifest.json"])
    tensors = load_file(folder / "model.safetensors")
    assert not any(tensor.is_complex() for tensor in tensors.values())
    assert tensors["prototypes.mean"].shape == (6, 4, 2)
    assert tensors["vectors.trained"].shape == (len(LABELS), 1, 4, 2)
    assert np.load(folder / "facts.npy", allow_pickle=False).dtype == np.int64
    rows = (folder / "entities.jsonl").read_bytes().split(b"\n")
    assert json.loads(rows[1]) == {"label": LABELS[1], "origin": "trained"}
    assert len(rows) == len(LABELS) + 1
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["format"] == 2
    assert sorted(manifest["files"]) == CONTENT
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def extended_parts(name, sections=3):
    """A stored model with three entities that were added later."""
    parts = make_parts(name)
    stored = StoredModel.from_training(
        parts["model"], parts["entities"], parts["relations"], parts["train"].triples
    )
    g = torch.Generator().manual_seed(5)
    x = torch.randn(3, sections, 4, generator=g, dtype=stored.prototypes.mean.dtype)
    return dataclasses.replace(
        stored,
        entities=stored.entities.extend(["new", "newer", "adrift"]),
        origins=(*stored.origins, "extended", "extended", "unanchored"),
        facts=torch.cat([stored.facts, torch.tensor([[8, 1, 0], [9, 0, 8], [10, 0, 10]])]),
        extended=x,
        section_weight=(0.5, 0.25, 0.25)[:sections] if sections > 1 else (1.0,),
    )


@pytest.mark.parametrize("name", sorted(KGE_REGISTRY))
@pytest.mark.parametrize("sections", [1, 3])
def test_added_entities_come_back_bit_for_bit(tmp_path, name, sections):
    stored = extended_parts(name, sections)
    again = load_model_folder(write_model_folder(tmp_path / "model", stored))
    assert bits(again.extended) == bits(stored.extended)
    assert again.extended.dtype == stored.extended.dtype
    assert again.origins == stored.origins
    assert again.entities == stored.entities
    assert again.section_weight == stored.section_weight
    assert torch.equal(again.facts, stored.facts)
    assert bits(again.model.node_emb.weight) == bits(stored.model.node_emb.weight)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert tensors["vectors.extended"].shape[:3] == (3, sections, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extended": None}, "the same entities"),
        ({"extended": torch.zeros(3, 1, 4)}, "must be"),
        ({"extended": torch.zeros(3, 3, 4)}, "complex"),
        ({"extended": torch.full((3, 3, 4), torch.nan, dtype=torch.complex64)}, "not finite"),
        ({"origins": ("trained",) * 11}, "'origins'"),
        ({"origins": ("extended",) * 11}, "'origins'"),
        ({"section_weight": (0.5, 0.5, 0.5)}, "add up to 1"),
        ({"residual_variance": torch.zeros(2)}, "residual_variance"),
    ],
)
def test_parts_of_an_extended_model_must_belong_together(changes, message):
    with pytest.raises((ValueError, DivergenceError), match=message):
        dataclasses.replace(extended_parts("rotate"), **changes)


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_folders_of_format_one_are_read(tmp_path, name):
    parts = make_parts(name)
    folder = save_model_folder(tmp_path / "model", **parts)
    tensors = load_file(folder / "model.safetensors")
    tensors["node_emb.weight"] = tensors.pop("vectors.trained").flatten(1).contiguous()
    forge(folder, "model.safetensors", save(tensors))
    plain = json.loads((folder / "model.json").read_bytes())
    del plain["section_weight"]
    forge(folder, "model.json", json.dumps(plain).encode())
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    stored = load_model_folder(folder)
    assert bits(stored.model.node_emb.weight) == bits(parts["model"].node_emb.weight)
    assert stored.extended is None
    assert stored.section_weight == (1.0,)


def test_loading_draws_no_random_numbers_and_shares_nothing_with_the_file(folder):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    stored = load_model_folder(folder)
    assert torch.rand(1) == expected
    with torch.no_grad():
        stored.model.node_emb.weight.zero_()
    assert load_model_folder(folder).model.node_emb.weight.abs().sum() > 0


# Damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CONTENT, "manifest.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FormatError, match=rf"{name}.* is missing"):
        load_model_folder(folder)


@pytest.mark.parametrize("keep", [0, 0.5, -1])
@pytest.mark.parametrize("name", [*CONTENT, "manifest.json"])
def test_a_truncated_file_is_named(folder, name, keep):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * keep)] if keep >= 0 else data[:-3])
    with pytest.raises(FormatError, match=rf"{name}' is refused"):
        load_model_folder(folder)


@pytest.mark.parametrize("name", CONTENT)
def test_every_edited_byte_is_noticed(folder, name):
    data = (folder / name).read_bytes()
    for position in np.random.default_rng(0).integers(0, len(data), 10):
        edited = bytearray(data)
        edited[position] ^= 1
        (folder / name).write_bytes(bytes(edited))
        with pytest.raises(FormatError, match=rf"{name}' is refused: its content was changed"):
            load_model_folder(folder)


def test_edits_of_the_manifest_never_load_another_model(folder):
    data = (folder / "manifest.json").read_bytes()
    library = json.loads(data)["library"].encode()
    for position in range(0, len(data), 7):
        if data.find(library) <= position < data.find(library) + len(library):
            continue
        edited = bytearray(data)
        edited[position] ^= 1
        (folder / "manifest.json").write_bytes(bytes(edited))
        try:
            stored = load_model_folder(folder)
        except FormatError:
            continue
        # White space may change without harm.
        assert data[position : position + 1].isspace()
        assert stored.entities.labels == LABELS


@pytest.mark.parametrize("version", [0, 5, "1", None, True])
def test_another_format_version_is_refused(folder, version):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest |= {"format": version, "library": "sheafprop 9.9"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        FormatError, match=rf"version {version!r} and was written by sheafprop 9\.9.*up to 4"
    ):
        load_model_folder(folder)


@pytest.mark.parametrize(
    "content", ["[]", "3", "null", '{"format": 1}', '{"format": 1, "files": 2}']
)
def test_a_manifest_of_another_shape_is_refused(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(FormatError, match=r"manifest\.json' is refused"):
        load_model_folder(folder)


def test_the_manifest_cannot_point_outside(folder):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"]["../secret"] = manifest["files"].pop("facts.npy")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"edited.*\.\./secret"):
        load_model_folder(folder)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_loading_runs_no_code(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bombs = np.empty(1, dtype=object)
    bombs[0] = Bomb()
    np.save(tmp_path / "bomb.npy", bombs, allow_pickle=True)
    original = (folder / "facts.npy").read_bytes()
    for data in (pickle.dumps(Bomb()), (tmp_path / "bomb.npy").read_bytes()):
        forge(folder, "facts.npy", data)
        with pytest.raises(FormatError):
            load_model_folder(folder)
    forge(folder, "facts.npy", original)
    load_model_folder(folder)
    for name in CONTENT:
        (folder / name).rename(folder / "kept")
        forge(folder, name, pickle.dumps(Bomb()))
        with pytest.raises(FormatError):
            load_model_folder(folder)
        forge(folder, name, (folder / "kept").read_bytes())
    assert not (tmp_path / "exploded").exists()


def _json(**changes):
    def edit(data):
        return json.dumps(json.loads(data) | changes).encode()

    return edit


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("model.json", _json(model="os.system")),
        ("model.json", _json(model=["rotate"])),
        ("model.json", _json(config={"hidden_channels": 4})),
        ("model.json", _json(config={"num_nodes": 8, "num_relations": 3, "hidden_channels": 5})),
        (
            "model.json",
            _json(config={"num_nodes": 10**9, "num_relations": 3, "hidden_channels": 4}),
        ),
        ("model.json", _json(settings=3)),
        ("model.json", _json(section_weight=[0.5])),
        ("model.json", _json(section_weight="all")),
        ("model.json", lambda data: b"[1]"),
        ("metrics.json", lambda data: b"7"),
        ("entities.jsonl", lambda data: data + data),
        ("entities.jsonl", lambda data: data[data.index(b"\n") + 1 :]),
        ("entities.jsonl", lambda data: data.replace(b'"plain"', b"17")),
        ("entities.jsonl", lambda data: data.replace(b'"plain"', b'"\xff"')),
        ("entities.jsonl", lambda data: b"7\n" + data),
        ("relations.jsonl", lambda data: data + b'{"label": "one more"}\n'),
        ("facts.npy", lambda data: b""),
        ("model.safetensors", lambda data: data[:-8]),
        ("model.safetensors", lambda data: b"\xff" * 64),
    ],
)
def test_files_that_do_not_fit_together_are_refused(folder, name, edit):
    forge(folder, name, edit((folder / name).read_bytes()))
    with pytest.raises(FormatError, match="holds no model"):
        load_model_folder(folder)


@pytest.mark.parametrize("facts", [[[0, 0, 8]], [[0, 3, 0]], [[-1, 0, 0]], [[0, 0]], [[0.0, 0, 0]]])
def test_facts_must_fit_the_labels(folder, tmp_path, facts):
    np.save(tmp_path / "facts.npy", np.array(facts))
    forge(folder, "facts.npy", (tmp_path / "facts.npy").read_bytes())
    with pytest.raises(FormatError, match="holds no model"):
        load_model_folder(folder)


def test_a_folder_without_a_model(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FormatError, match=r"There is no model in .* 'import' write such"):
            load_model_folder(path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FormatError, match=r"'sheafprop fit --resume .*' resumes it"):
        load_model_folder(tmp_path)


# Overwriting, crashes ----------------------------------------------------------------------------


def test_an_existing_folder_is_kept_unless_asked(folder):
    before = (folder / "model.safetensors").read_bytes()
    other = make_parts("transe")
    with pytest.raises(ValueError, match="exists: choose another folder, or pass overwrite=True"):
        save_model_folder(folder, **other)
    assert (folder / "model.safetensors").read_bytes() == before
    save_model_folder(folder, **other, overwrite=True)
    assert load_model_folder(folder).model.name == "transe"
    assert os.listdir(folder.parent) == ["model"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "model").mkdir()
    mode = (tmp_path / "model").stat().st_mode
    save_model_folder(tmp_path / "model", **make_parts())
    load_model_folder(tmp_path / "model")
    assert (tmp_path / "model").stat().st_mode == mode


def test_other_peoples_files_are_never_overwritten(folder, tmp_path):
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path in (folder, tmp_path / "file"):
        with pytest.raises(ValueError, match="is not overwritten"):
            save_model_folder(path, **make_parts(), overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"


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
    monkeypatch.setattr(os, "fsync", guard(os.fsync))
    monkeypatch.setattr(os, "replace", guard(os.replace))
    return calls


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_at_any_moment_leaves_the_old_model_or_the_new_one(
    tmp_path, monkeypatch, overwrite, error
):
    folder = tmp_path / "model"
    parts = make_parts("transe")
    for limit in range(1000):
        shutil.rmtree(folder, ignore_errors=True)
        if overwrite:
            save_model_folder(folder, **make_parts("rotate"))
        with monkeypatch.context() as patch:
            calls = _count_calls(patch, limit, error)
            with suppress(StorageError, KeyboardInterrupt):
                save_model_folder(folder, **parts, overwrite=overwrite)
        if len(calls) <= limit:
            break
        names = os.listdir(tmp_path)
        if names == [".model.previous"]:
            # Even putting the old folder back was refused.
            with pytest.raises(FormatError, match=r"interrupted.*\.model\.previous"):
                load_model_folder(folder)
            (tmp_path / names[0]).rename(folder)
        if overwrite or folder.exists():
            names = {"rotate", "transe"} if overwrite else {"transe"}
            assert load_model_folder(folder).model.name in names
        assert os.listdir(tmp_path) in ([], ["model"])
    assert limit > 20
    assert load_model_folder(folder).model.name == "transe"


def test_a_full_disk_is_reported_for_the_folder_that_was_asked_for(tmp_path, monkeypatch):
    _count_calls(monkeypatch, 5, OSError(errno.ENOSPC, "full"))
    folder = tmp_path / "deep" / "model"
    with pytest.raises(StorageError, match=rf"'{folder}' cannot be written: the disk is full"):
        save_model_folder(folder, **make_parts())


def test_a_refused_rename_brings_the_old_model_back(folder, monkeypatch):
    replace = os.replace

    def refuse_once(source, target):
        if os.path.basename(target) == "model" and ".tmp" in str(source):
            raise PermissionError(errno.EACCES, "denied")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_once)
    with pytest.raises(StorageError, match="permission denied"):
        save_model_folder(folder, **make_parts("transe"), overwrite=True)
    assert load_model_folder(folder).model.name == "rotate"
    assert os.listdir(folder.parent) == ["model"]


def test_a_file_that_may_not_be_read(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(model_folder, "open", refuse, raising=False)
    with pytest.raises(StorageError, match="cannot be read: permission denied"):
        load_model_folder(folder)


# Arguments ---------------------------------------------------------------------------------------


def test_parts_must_belong_together(tmp_path):
    parts = make_parts()
    for changes, message in (
        ({"entities": Vocabulary(LABELS[:-1])}, "the same entities"),
        ({"relations": Vocabulary(["a", "b"])}, "the same relations"),
        ({"settings": {"start": torch.ones(1)}}, r"settings\['start'\] must be a plain value"),
        ({"metrics": {"mrr": {1: 2}}}, r"keys of metrics\['mrr'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            save_model_folder(tmp_path / "model", **(parts | changes))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_model_is_not_saved(tmp_path, value):
    parts = make_parts()
    with torch.no_grad():
        parts["model"].rel_emb.weight[1, 1] = value
    with pytest.raises(DivergenceError, match=r"'rel_emb\.weight'"):
        save_model_folder(tmp_path / "model", **parts)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_model_is_synced_with_its_folder_after_the_last_rename(tmp_path, monkeypatch, again):
    """Every file, the folder that holds them, and at the end the folder where it was renamed."""
    target, parts = tmp_path / "model", make_parts()
    if again:
        save_model_folder(target, **parts)
    events, replace, fsync = [], os.replace, os.fsync

    def renamed(source, to):
        events.append("rename")
        replace(source, to)

    def synced(handle):
        status = os.fstat(handle)
        events.append(status.st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    save_model_folder(target, **parts, overwrite=again)
    last = len(events) - events[::-1].index("rename")
    assert os.stat(tmp_path).st_ino in events[last:]
    before = set(events[:last])
    assert os.stat(target).st_ino in before
    assert {entry.stat().st_ino for entry in os.scandir(target)} <= before
