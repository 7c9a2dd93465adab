"""Reads, checks, names and groups the records of runs, their ``metrics.json``."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sheafprop.checks import count_noun
from sheafprop.errors import FormatError
from sheafprop.ranking import PROTOCOLS
from sheafprop.ranking.edge_type_heuristic import HEURISTIC

Record = dict[str, Any]

_TIES = {"optimistic": "first rank of ties", "pessimistic": "last rank of ties"}

FORMAT = 1
_SHAPES: dict[str, type] = {
    "run": dict,
    "data": dict,
    "training": dict,
    "selection": dict,
    "test": list,
    "protocols": dict,
    "seconds": dict,
}
_OF_PROXIMITY = {"search", "episodes", "on", "count", "chosen", "curve"}


def read_record(path: Path) -> Record:
    """Reads the ``metrics.json`` of one run."""
    try:
        record = json.loads(path.read_text("utf-8"), parse_constant=_no_score)
    except ValueError as error:  # also UnicodeDecodeError and JSONDecodeError
        raise FormatError(
            f"{path} is not valid JSON ({error}). Test the run again, or move its folder away"
        ) from error
    problem = _problem(record)
    if problem:
        raise FormatError(
            f"{path} is not the record of a run: {problem}. Test the run again, or move its folder "
            "away"
        )
    record["run"].setdefault("name", path.parent.name)
    return record


def _no_score(constant: str) -> float:
    raise ValueError(f"{constant} is never a score")


def _problem(record: Any) -> str | None:
    if not isinstance(record, dict):
        return f"expected an object (got {type(record).__name__})"
    if record.get("format") != FORMAT:
        return f"expected format {FORMAT} (got {record.get('format')!r})"
    if "run" not in record:
        return "'run' is missing"
    for key, shape in _SHAPES.items():
        if key in record and not isinstance(record[key], shape):
            return f"expected {shape.__name__} for {key!r} (got {type(record[key]).__name__})"
    for index, entry in enumerate(record.get("test", [])):
        if not isinstance(entry, dict) or not {"method", "protocol", "metrics"} <= set(entry):
            return f"entry {index} of 'test' lacks 'method', 'protocol' or 'metrics'"
        if not isinstance(entry["metrics"], dict):
            return f"expected dict for 'metrics' in entry {index} of 'test'"
    curve = record.get("selection", {}).get("curve", [])
    if not isinstance(curve, list) or not all(isinstance(point, dict) for point in curve):
        return "expected a list of objects for 'curve' in 'selection'"
    near = record.get("selection", {}).get("proximity")
    if near is not None:
        missing = _OF_PROXIMITY - set(near if isinstance(near, dict) else ())
        if missing:
            return f"'proximity' in 'selection' lacks '{min(missing)}'"
    return None


def run_name(record: Record) -> str:
    """Returns the name of the run."""
    return str(record["run"].get("name", "unnamed run"))


def dataset_title(record: Record) -> str:
    """Returns the data set and its mode."""
    run = record["run"]
    mode = run.get("mode")
    return f"{run.get('dataset', 'unnamed data')}{f' ({mode})' if mode else ''}"


def by_dataset(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Groups records by data set and mode, in the order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(dataset_title(record), []).append(record)
    return groups


def metric_key(name: str, protocol: str) -> str:
    """Returns the key of a metric among the metrics of a protocol."""
    return PROTOCOLS[protocol].key(name) if protocol in PROTOCOLS else name


def tie_conventions(protocol: str) -> dict[str, str]:
    """Returns the names of the heuristic by the prefix of its metrics.

    A tie of the true entity is a hit or a miss under the rule of the protocol, and a hit with some
    probability in random order. Reports show both results.
    """
    rule = PROTOCOLS[protocol].ties if protocol in PROTOCOLS else "realistic"
    return {
        "": f"{HEURISTIC} ({_TIES.get(rule, 'mean rank of ties')})",
        "expected_": f"{HEURISTIC} (expectation over ties)",
    }


def protocol_order(protocol: str) -> int:
    """Returns the position of a protocol in reports; unknown protocols come last."""
    return [*PROTOCOLS, protocol].index(protocol)


def alike(records: list[Record], key: str) -> Iterator[tuple[list[Record], Any]]:
    """Groups records with equal values of :obj:`key`, so that each is shown once."""
    groups: list[tuple[list[Record], Any]] = []
    for record in records:
        value = record.get(key)
        for members, known in groups:
            if known == value:
                members.append(record)
                break
        else:
            groups.append(([record], value))
    yield from groups


def describe_proximity(found: dict[str, Any], metric: str) -> str | None:
    """Describes the selected weights of proximity; None if none that is in use was selected.

    Args:
        found (dict): From :meth:`~sheafprop.inductive.ProximitySearch.select`.
        metric (str): The metric of the selection.
    """
    if found["chosen"] is None:
        return f"proximity: {found.get('note', 'left out')}"
    used = ["weight"] if found["episodes"] else []
    used += ["share", "peers", "frequency", "teleport"]
    asked = [name for name in used if found["search"].get(name) == "auto"]
    chosen = ", ".join(f"{name} {found['chosen'][name]:g}" for name in asked)
    if asked and "note" in found:
        return f"proximity: {chosen} ({found['note']})"
    if asked and found["on"] == "defaults":
        return f"proximity: {chosen}, the defaults, as there are no triples to select on"
    curve = [row for row in found["curve"] if ("weight" in row) == found["episodes"]]
    curve = curve or found["curve"]
    if not curve:
        return None
    taken = found["chosen"].items()
    values = [row[metric] for row in curve if all(row.get(k, v) == v for k, v in taken)]
    value = f" ({metric} {values[0]:.3f})" if values else ""
    triples = count_noun(found["count"], "validation triple")
    if found["on"] == "training graph":
        triples += " of the training graph"
    tried = count_noun(len(found["curve"]), "setting")
    return f"proximity: {chosen}, selected on {triples} among {tried}{value}"
