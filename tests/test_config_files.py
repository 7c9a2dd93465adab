import os

import pytest
import yaml

from sheafprop.cli.lightning import SheafCLI
from sheafprop.cli.run_folder import RunFolder
from sheafprop.cli.search_space import SearchSpace
from sheafprop.config_files import (
    DATA_PLACES,
    config_root,
    dump_yaml,
    load_config,
    merge,
    parse_option,
    parse_yaml,
    resolve_place,
)
from sheafprop.errors import DataError
from sheafprop.kge import KGE_REGISTRY

ROOT = config_root()
#: All but the spaces of studies, which are no configurations of a run.
FILES = [p.relative_to(ROOT).with_suffix("") for p in ROOT.rglob("*.yaml")]
ALL = sorted(str(name) for name in FILES if name.parts[0] != "search")


def parsed(tmp_path, capsys, config):
    """The configuration as LightningCLI understands it, with every default filled in."""
    config.pop("run", None)
    with pytest.raises(SystemExit) as stop:
        SheafCLI(
            RunFolder(tmp_path),
            "",
            args=["fit", "--config", dump_yaml(config), "--print_config"],
        )
    assert stop.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("name", ALL)
def test_every_file_loads_alone(tmp_path, capsys, name):
    config = load_config(name)
    assert config, f"{name} states nothing"
    full = parsed(tmp_path, capsys, config)
    assert set(full) >= {"model", "data", "trainer"}


@pytest.mark.parametrize("model", sorted(KGE_REGISTRY))
@pytest.mark.parametrize("data", ["umls", "fb237_v4", "WN18RR_v1", "nell_v3", "folder"])
def test_data_and_models_compose(tmp_path, capsys, data, model):
    config: dict = {}
    for name in ("experiment/grail", f"data/{data}", f"model/{model}"):
        config = merge(config, load_config(name))
    full = parsed(tmp_path, capsys, config)
    assert full["model"]["kge"] == model
    assert full["data"]["name"] in (data, None, "fb237_v1")
    assert full["trainer"]["logger"]


def test_there_is_a_file_for_every_benchmark_and_model():
    families = [f"data/{f}_v{v}" for f in ("fb237", "WN18RR", "nell") for v in (1, 2, 3, 4)]
    assert {*families, "data/umls", "data/folder"} <= set(ALL)
    assert {f"model/{m}" for m in KGE_REGISTRY} == {n for n in ALL if n.startswith("model/")}


def test_model_files_state_the_same_keys():
    """So that one laid over another leaves nothing of it behind."""

    def keys(node, prefix=""):
        if not isinstance(node, dict):
            return {prefix}
        return {k for name, value in node.items() for k in keys(value, f"{prefix}.{name}")}

    files = [load_config(name) for name in ALL if name.startswith("model/")]
    assert all(keys(file) == keys(files[0]) for file in files)


@pytest.mark.parametrize("data", ["data/folder", "data/umls", "data/fb237_v4"])
def test_data_keep_the_batches_of_a_preset(data):
    assert "batch_size" not in load_config(data)["data"]
    preset = load_config("preset/best/fb237_rotate")
    merged = merge(preset, load_config(data))
    assert merged["data"]["batch_size"] == preset["data"]["batch_size"] == 1024


def test_published_presets_keep_the_counts_that_they_were_measured_with():
    old = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    names = [n for n in ALL if n.startswith("preset/best/") and "queries" not in n]
    names += [n for n in ALL if n.startswith("experiment/") and n.endswith(("rotate", "transe"))]
    assert len(names) == 16
    for name in names:
        search = load_config(name)["model"]["propagation"]
        assert search["iterations"][: len(old)] == old
        assert not {"patience", "max_triples", "max_random"} & search.keys()
    assert {5, 7} <= set(load_config("experiment/folder")["model"]["propagation"]["iterations"])


def test_defaults_are_merged_in_order(tmp_path):
    for folder in ("data", "model", "experiment"):
        (tmp_path / folder).mkdir()
    (tmp_path / "data" / "a.yaml").write_text("data: {name: a, batch_size: 1}\nx: [1, 2]\n")
    (tmp_path / "model" / "b.yaml").write_text("data: {batch_size: 2}\nx: [3]\n")
    file = tmp_path / "experiment" / "c.yaml"
    file.write_text("defaults: [data/a, model/b]\ndata: {seed: 5}\n")
    assert load_config(str(file)) == {"data": {"name": "a", "batch_size": 2, "seed": 5}, "x": [3]}


def test_a_section_whose_options_are_commented_out_changes_nothing(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("defaults: [model/rotate]\nmodel:\n  # lr: 0.1\nrun:\n")
    assert load_config(str(file)) == load_config("model/rotate")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("defaults: [experiment/c]", "includes itself"),
        ("defaults: data/a", "list of names"),
        ("- 1", "must hold a mapping"),
        ("model: rotate", r"c\.yaml: 'model' must hold options \(got 'rotate'\)"),
        ("run: [x]", "'run' must hold options"),
        ("", r"c\.yaml is empty"),
        ("# nothing but words\n", r"c\.yaml is empty"),
        ("a: [", "not valid YAML: line 1, column 5: "),
        ("a: 1\n b: 2\n", r"not valid YAML: line 2, column 3: mapping values are not allowed"),
        ("a: \x00", "not valid YAML: .*special characters are not allowed"),
        ("run: {name: \udce9}", r"c\.yaml is not UTF-8"),
        ("defaults: [data/nowhere]", "no configuration"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "c.yaml"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        load_config(str(file))
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(DataError, match=r"experiment/umls_rotate\.yaml"):
        load_config("experiment/umls_rotat")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logger/tensorbord", r"has logger/csv\.yaml, logger/tensorboard\.yaml, logger/wandb"),
        ("configs/model/rotat.yaml", r"has model/lineare\.yaml, .*model/rotate\.yaml"),
        ("preset/best/nowhere", r"has preset/best/WN18RR_rotate\.yaml"),
        ("nowhere/rotate", r"has experiment/"),
        ("/nowhere/rotate.yaml", r"has experiment/"),
        ("../logger/csvv", r"has experiment/"),
        ("nowhere.yaml", r"has experiment/"),
    ],
)
def test_an_unknown_name_lists_those_of_its_folder(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        load_config(name)


@pytest.mark.parametrize(
    "text", ["1e5", "12e3", "7E-2", "007", "1_000", "true", "no", "2024-01-01"]
)
def test_names_and_folders_are_text_whatever_they_look_like(tmp_path, text):
    (tmp_path / "c.yaml").write_text(
        f"data: {{root: {text}, name: {text}, features: {text}}}\n"
        f"run: {{name: {text}, group: {text}}}\n"
        f"trainer: {{logger: [{{init_args: {{save_dir: {text}}}}}]}}\n"
    )
    config = load_config(str(tmp_path / "c.yaml"))
    assert config["data"] == {"root": text, "name": text, "features": text}
    assert config["run"] == {"name": text, "group": text}
    assert config["trainer"]["logger"][0]["init_args"]["save_dir"] == text
    assert parse_option("data.root", text) == parse_option("data.features", text) == text
    assert parse_yaml(dump_yaml(config)) == config


def test_no_folder_is_no_text_and_a_folder_called_null_is_one(tmp_path):
    (tmp_path / "c.yaml").write_text("data: {root: null, name: ~}\n")
    assert load_config(str(tmp_path / "c.yaml"))["data"] == {"root": None, "name": None}
    assert os.path.normpath(parse_option("data.root", "null")) == "null"
    assert parse_option("data.root", "~") == "~"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("3E+2", 300.0),
        ("-2e5", -2e5),
        ("1.5e-3", 1.5e-3),
        ("'1e-4'", "1e-4"),
        ("8", 8),
    ],
)
def test_numbers_are_numbers(tmp_path, capsys, text, value):
    (tmp_path / "c.yaml").write_text(f"model: {{lr: {text}}}\n")
    got = load_config(str(tmp_path / "c.yaml"))["model"]["lr"]
    assert got == value
    assert type(got) is type(value)
    assert parse_option("model.lr", text) == value
    assert parse_yaml(dump_yaml({"x": value})) == {"x": value}
    if isinstance(value, float):
        (tmp_path / "s.yaml").write_text(
            f"model.margin: {{type: float, low: {value:.0e}, high: 9e9}}\n"
        )
        space = SearchSpace.load(str(tmp_path / "s.yaml"))
        assert space.options["model.margin"]["low"] == float(f"{value:.0e}")


def test_places_of_the_data_are_absolute_and_words_for_prefixes_stay(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/me")
    for name in DATA_PLACES:
        assert resolve_place(name, None) is None
        assert resolve_place(name, "a/../b") == str(tmp_path / "b")
        assert resolve_place(name, "~/b") == "/users/me/b"
    for word in ("common", "none"):
        assert resolve_place("prefixes", word) == word
        assert resolve_place("root", word) == str(tmp_path / word)


@pytest.mark.parametrize("root", ["1e5", "12e3", "null", "0x10"])
def test_the_parser_gets_folders_as_they_are_called(tmp_path, capsys, root):
    place = parse_option("data.root", root)
    full = parsed(
        tmp_path, capsys, merge(load_config("experiment/folder"), {"data": {"root": place}})
    )
    assert os.path.normpath(full["data"]["root"]) == root
