"""``sheafprop evaluate``: rank test triples, of a run or of a file."""

import argparse
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafprop.cli.command_parser import (
    CommandParser,
    read_facts,
    report,
    show_progress,
    write_table,
)
from sheafprop.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from sheafprop.distributed import Ranks

_PROTOCOLS = ("full", "sampled50", "merged", "strict")


def run(words: Sequence[str]) -> int:
    """Ranks the test triples of a run, or those of files among all entities of a model."""
    parser = CommandParser(
        "evaluate",
        "Rank the test triples of a run, as 'sheafprop test' does, or the triples of files.",
        "sheafprop evaluate --run runs/umls/rotate --protocol full",
    )
    parser.add_argument("model", nargs="?", help="a model folder, with --test")
    parser.add_argument(
        "--run", help="the run folder of a finished fit, with its data and settings"
    )
    parser.add_argument("--test", nargs="+", metavar="FILE", help="triples to rank")
    parser.add_argument(
        "--filter", nargs="+", default=[], metavar="FILE", help="further true triples to filter"
    )
    parser.add_argument(
        "--on-unknown-entity",
        choices=("error", "drop", "extend"),
        default="error",
        help="triples with unknown entities: raise an error, drop them, or first extend the model "
        "by --facts and --features (default: error)",
    )
    parser.add_argument(
        "--facts",
        nargs="+",
        metavar="FILE",
        help="facts of unknown entities, for --on-unknown-entity extend",
    )
    parser.add_argument(
        "--features", metavar="FILE", help="features of entities, for --on-unknown-entity extend"
    )
    parser.add_argument("--protocol", action="append", choices=_PROTOCOLS, help="may be repeated")
    parser.add_argument("--data.root", dest="root", help="the data of the run, if it has moved")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="under torchrun: timeout of a process that does not respond (default: 300)",
    )
    parser.add_file_options()
    parser.add_output()
    options = parser.parse_args(list(words))
    if (options.run is None) == (options.model is None):
        parser.error("give either --run RUN, or a model with --test FILE")
    if options.model is not None and not options.test:
        parser.error("a model needs --test FILE, the triples to rank")
    if options.run is not None and (options.test or options.filter):
        parser.error("--run ranks the test triples of the run; give --test and --filter a model")
    if options.model is not None and options.root is not None:
        parser.error("--data.root goes with --run")
    given = bool(options.facts or options.features)
    if options.run is not None and (given or options.on_unknown_entity != "error"):
        parser.error(
            "--on-unknown-entity, --facts and --features go with --test; a run drops unknown "
            "entities and counts them, and has its own features"
        )
    if given != (options.on_unknown_entity == "extend"):
        parser.error(
            "--on-unknown-entity extend needs --facts FILE or --features FILE, which go with it"
        )
    from sheafprop.distributed import process_group

    with process_group(timeout=options.timeout) as ranks:
        rows, boxes = (_of_run if options.run else _of_files)(options, ranks)
        if ranks.is_first:
            write_table(_table(rows), options)
            for box in boxes.values():
                report("\n" + box)
    return 0


def _of_run(
    options: argparse.Namespace, ranks: "Ranks"
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    from sheafprop.cli.run_folder import describe_interruption, read_run
    from sheafprop.data.inductive_data import renumber
    from sheafprop.distributed import rank_shares
    from sheafprop.inductive.propagation_settings import PropagationSettings
    from sheafprop.inductive.proximity_search import selected_weights
    from sheafprop.inductive.rank_completion import rank_completion
    from sheafprop.pretrained.model_folder import load_model_folder

    folder = Path(options.run).expanduser()

    def read() -> tuple[Any, Any, Any]:
        config = read_run(folder)
        data, stored = _data(config["data"], options.root), load_model_folder(folder)
        return config, renumber(data, stored.entities, stored.relations), stored

    config, data, stored = ranks.run_together(read)
    if ranks.is_first and (note := describe_interruption(folder)):
        report(f"note: {note}")
    settings = PropagationSettings(**stored.settings)
    triples = [data.train.triples, data.inference.triples, data.valid, data.test]
    ranks.compare("run and data", settings, *triples, *stored.model.state_dict().values())
    selection = stored.metrics.get("selection", {})
    result = rank_completion(
        stored.model,
        data,
        settings,
        episodes=stored.episodes,
        proximity=stored.proximity,
        protocols=options.protocol or config["model"].get("protocols") or _PROTOCOLS[:2],
        selected=selection.get("on", "validation") == "validation",
        selected_weights=selected_weights(selection.get("proximity")),
        seed=config["seed_everything"],
        progress=ranks.is_first and show_progress(),
        feature_map=None if stored.features is None else stored.features.map,
        rank=partial(rank_shares, ranks),
    )
    return result.rows, result.protocols


def _data(given: dict[str, Any], root: str | None) -> Any:
    from sheafprop.data import build_dataset

    names = [
        name for name in inspect.signature(build_dataset).parameters if given.get(name) is not None
    ]
    arguments = {name: given[name] for name in names}
    if root is not None:
        arguments["root"] = root
    data = build_dataset(**arguments).load()
    if given.get("features") is None:
        return data
    from sheafprop.data.feature_files import read_features
    from sheafprop.data.inductive_data import add_features

    return add_features(data, read_features(given["features"]))


def _of_files(
    options: argparse.Namespace, ranks: "Ranks"
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    from sheafprop.cli.extend import read_given_features
    from sheafprop.pretrained.sheaf_model import SheafModel

    if "merged" in (options.protocol or ()):
        raise DataError("the protocol 'merged' is defined for runs: take --run")

    def read() -> tuple[Any, list[Any], Any]:
        model = SheafModel.load(options.model)
        given = (options.test, options.filter, options.facts)
        triples = [read_facts(f, options, model.relations) if f else None for f in given]
        return model, triples, read_given_features(options)

    model, (test, known, facts), features = ranks.run_together(read)
    result = model.rank(
        test,
        known=known,
        on_unknown_entity=options.on_unknown_entity,
        facts=facts,
        features=features,
        progress=show_progress(),
        ranks=ranks,
    )
    name, chosen = type(model.kge).__name__, options.protocol or _PROTOCOLS[:2]
    rows = [{"method": name, "protocol": p, "metrics": result.metrics(p)} for p in chosen]
    return rows, {protocol: result.describe(protocol) for protocol in chosen}


def _table(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    """One row per method, protocol and metric: names differ between protocols."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "method": row["method"],
                "protocol": row["protocol"],
                "metric": name,
                "value": float(value),
                "mark": row.get("mark", ""),
            }
            for row in rows
            for name, value in row["metrics"].items()
        ]
    )
