import ast
import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from sheafprop.errors import DataError, FormatError
from sheafprop.files import storage_errors
from sheafprop.pretrained.importers.arrays import norm_notes
from sheafprop.pretrained.importers.id_files import require_file
from sheafprop.pretrained.importers.tables import (
    BLOCK_BYTES,
    Block,
    Facts,
    check_shape,
    import_table,
    is_object,
    read_json,
    row_blocks,
)
from sheafprop.pretrained.stored_model import StoredModel

#: The decoders with a sheaf, and the exponents of their norms.
_DECODERS = {"transe_l1": ("transe", 1.0), "transe_l2": ("transe", 2.0), "rotate": ("rotate", 1.0)}
#: Where training stores its options, in the folder of the model.
CONFIG = "GRAPHSTORM_RUNTIME_UPDATED_TRAINING_CONFIG.yaml"


def import_graphstorm(
    folder: str | PathLike[str],
    *,
    config: str | PathLike[str] | None = None,
    facts: Facts | None = None,
    keep_unused: bool = False,
    scratch: str | PathLike[str] | None = None,
) -> StoredModel:
    r"""Imports the embeddings that `GraphStorm <https://github.com/awslabs/graphstorm>`_ saves for
    a TransE or RotatE decoder.

    The decoder and :math:`\gamma` are read from its configuration, and the embeddings a file at a
    time: ``TYPE/embed-*.pt`` with the node numbers of ``embed_nids-*.pt``, or after the remapping
    ``TYPE/*.parquet`` with the columns ``nid`` and ``emb``. The published formulas
    (``eval/utils.py``, ``model/edge_decoder.py``):

    ========================  ======================================================================
    ``transe_l1, transe_l2``  :math:`\gamma - \|\mathbf{h} + \mathbf{r} - \mathbf{t}\|_p`
    ``rotate``                :math:`\gamma - \sum_j |h_j e^{i \theta_j} - t_j|`, all real parts
                              first, :math:`\theta = \pi \mathbf{r} / \epsilon` with
                              :math:`\epsilon = \gamma / d` (DGL-KE has :math:`\gamma + 2`)
    ========================  ======================================================================

    Labels of entities are their ids, and ``TYPE:ID`` where there are several types; those of
    relations the middle of ``(source type, relation, target type)``, or the three with colons
    between where two relations share it.

    Args:
        folder: What ``save_embed_path`` was, with ``emb_info.json`` and ``rel_emb.pt``.
        config: The YAML of the training. (default: the one that training stores, in this folder or
            in one above it)
        facts (iterable, optional): The training triples as labels.
        keep_unused (bool): See :func:`import_arrays`.
        scratch: Where the table is copied to, see :func:`import_table`.

    Raises:
        DataError: If ``pyarrow`` is needed and not installed.
        FormatError: If a file is missing, or the decoder has no sheaf.
        StorageError: If a file cannot be read.
    """
    path = Path(folder).expanduser()
    decoder, gamma = _settings(path, config)
    kind, p = _DECODERS[decoder]
    advice = "give the folder of save_embed_path"
    info = read_json(path / "emb_info.json", is_object, "what GraphStorm saved", advice)
    ids = read_json(path / "relation2id_map.json", is_object, "numbers of relations", advice)
    relations = _relation_names(path / "relation2id_map.json", ids)
    rows = _load(path / "rel_emb.pt")
    check_shape(path / "rel_emb.pt", rows, (len(relations), None), "relation vectors")
    types = info.get("emb_name") or []
    types = [types] if isinstance(types, str) else list(types)
    if not types:
        raise FormatError(f"'{path / 'emb_info.json'}' names no node type in 'emb_name'")
    entities: list[str] = []
    files: list[tuple[Path, np.ndarray]] = []
    for name in types:
        for file, labels, numbers in _files(path / name):
            if labels is None:
                labels = list(map(str, numbers.tolist()))
            files.append((file, np.arange(len(entities), len(entities) + len(labels))))
            entities += labels if len(types) == 1 else [f"{name}:{label}" for label in labels]
    width = rows.shape[1] * (2 if kind == "rotate" else 1)
    parameters = {"rel_emb.weight": rows.float()}
    if kind == "rotate":
        if gamma is None:
            raise FormatError(
                f"the configuration has no 'gamma', which the phases of RotatE are stored with: "
                f"give a configuration that has it (--config FILE.yaml; it was looked for beside "
                f"'{path}')"
            )
        parameters["rel_emb.weight"] *= math.pi * rows.shape[1] / gamma
    return import_table(
        kind,
        entities=entities,
        relations=relations,
        blocks=_blocks(files, width),
        width=width,
        parameters=parameters,
        facts=facts,
        keep_unused=keep_unused,
        scratch=scratch,
        p=p,
        notes=norm_notes(p),
    )


def _settings(path: Path, given: str | PathLike[str] | None) -> tuple[str, float | None]:
    """The decoder and its gamma."""
    places = [folder / CONFIG for folder in (path, *list(path.resolve().parents)[:2])]
    place = Path(given).expanduser() if given is not None else None
    place = place or next((p for p in places if p.is_file()), None)
    if place is None:
        raise FormatError(
            f"'{path}' does not say which decoder it is of: give the configuration of the training "
            f"with --config FILE.yaml ('{CONFIG}' in the folder of the model)"
        )
    with storage_errors(place, "read"):
        text = place.read_bytes()
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise FormatError(f"'{place}' is not YAML: {' '.join(str(error).split())}") from error
    options: dict[str, Any] = {}
    sections = value.get("gsf", {}) if isinstance(value, dict) else {}
    for section in sections.values() if isinstance(sections, dict) else ():
        options |= section if isinstance(section, dict) else {}
    decoder = options.get("lp_decoder_type")
    if decoder not in _DECODERS:
        raise FormatError(
            f"'{place}': the decoder (lp_decoder_type) is {decoder!r}, and only "
            f"{', '.join(_DECODERS)} have a sheaf"
        )
    gamma = options.get("gamma")
    return decoder, None if gamma is None else float(gamma)


def _relation_names(path: Path, ids: dict[str, Any]) -> list[str]:
    """The labels of relations in the order of their numbers."""
    triples: dict[int, tuple[str, ...]] = {}
    for key, number in ids.items():
        try:
            parts = ast.literal_eval(key)  # str() of a tuple, of which it reads literals alone
        except (ValueError, SyntaxError) as error:
            raise FormatError(f"'{path}': {key!r} is not a type of edges") from error
        if not isinstance(parts, tuple) or len(parts) != 3 or not isinstance(number, int):
            raise FormatError(f"'{path}': {key!r} is no (source, relation, target) with a number")
        triples[number] = tuple(map(str, parts))
    if sorted(triples) != list(range(len(ids))):
        raise FormatError(f"'{path}' does not number its relations from 0 on, each once")
    names = [triples[number][1] for number in range(len(triples))]
    if len(set(names)) == len(names):
        return names
    return [":".join(triples[number]) for number in range(len(triples))]


def _files(folder: Path) -> Iterator[tuple[Path, list[str] | None, np.ndarray]]:
    """The files of a node type, with labels or numbers of their rows."""
    parquet = sorted(folder.glob("*.parquet"))
    for file in parquet:
        yield file, list(map(str, _parquet(file).read(["nid"])["nid"].to_pylist())), np.empty(0)
    tensors = [] if parquet else sorted(folder.glob("embed-*.pt"))
    for file in tensors:
        numbers = _load(file.with_name(file.name.replace("embed-", "embed_nids-", 1)))
        yield file, None, numbers.numpy()
    if not parquet and not tensors:
        raise FormatError(
            f"'{folder}' holds neither 'embed-*.pt' nor '*.parquet', which 'emb_info.json' names"
        )


def _blocks(files: list[tuple[Path, np.ndarray]], width: int) -> Iterator[Block]:
    for path, numbers in files:
        if path.suffix == ".pt":
            rows = _load(path)
            check_shape(path, rows, (len(numbers), width), "vectors of its nodes")
            yield from row_blocks(rows, int(numbers[0]) if len(numbers) else 0)
            continue
        begin, size = 0, max(1, BLOCK_BYTES // (4 * width))
        for batch in _parquet(path).iter_batches(batch_size=size, columns=["emb"]):
            block = np.array(batch.column("emb").to_pylist(), dtype=np.float32)
            check_shape(path, block, (len(batch), width), "vectors of its nodes")
            yield numbers[begin : begin + len(block)], block
            begin += len(block)


def _parquet(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(f"'{path}' needs pyarrow: pip install 'sheafprop[parquet]'") from error
    try:
        file = ParquetFile(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise FormatError(f"'{path}' is not a complete Parquet file: {error}") from error
    missing = {"nid", "emb"} - set(file.schema_arrow.names)
    if missing:
        raise FormatError(f"'{path}' has no column '{sorted(missing)[0]}'")
    return file


def _load(path: Path) -> Tensor:
    """A tensor of a file, mapped."""
    require_file(path, "give the folder of save_embed_path as it was saved")
    with storage_errors(path, "read"):
        try:
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except OSError:
            raise
        except Exception as error:
            raise FormatError(
                f"'{path}' is not a complete tensor of torch.save: {error}"
            ) from error
    if not isinstance(value, Tensor):
        raise FormatError(f"'{path}' holds no tensor (got {type(value).__name__})")
    return value.detach()
