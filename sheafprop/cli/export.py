"""``sheafprop export``: vectors for other programs."""

from collections.abc import Sequence
from pathlib import Path

from sheafprop.checks import count_noun
from sheafprop.cli.command_parser import CommandParser, is_output, report, report_warnings


def run(words: Sequence[str]) -> int:
    """Writes the vectors of a model."""
    parser = CommandParser(
        "export",
        "Write the vectors of a model in formats that other programs read.",
        "sheafprop export extended --out vectors.txt --format word2vec",
    )
    parser.add_model()
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="the file to write, or - for standard output"
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "npy", "tsv", "word2vec", "neo4j"),
        help="(default: by FILE's name: .safetensors, .npy, .tsv, .txt, .csv)",
    )
    parser.add_argument(
        "--relations",
        metavar="FILE",
        help="also write the relations, as safetensors, for 'import arrays --relation-parameters'",
    )
    parser.add_argument("--facts", metavar="FILE", help="also write the facts, as TSV")
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="neo4j: the nodes as Neo4j exported them (HEADER,FILE of two files), which keep their "
        "columns, spaces of ids and labels",
    )
    options = parser.parse_args(list(words))
    shown = is_output(options.out)
    if shown and options.format not in ("tsv", "word2vec", "neo4j"):
        parser.error("standard output takes --format tsv, word2vec or neo4j")

    model = parser.load_model(options)
    place = Path("/dev/stdout" if shown else options.out).expanduser()
    x = model.vectors([])
    numbers = x.shape[2] * (2 if x.is_complex() else 1)
    many = f"{x.shape[1]} vectors of {numbers:,} numbers side by side"
    shape = many if x.shape[1] > 1 else f"a vector of {numbers:,} numbers each"
    more = {
        name: None if given is None else Path(given).expanduser()
        for name, given in (("relations", options.relations), ("facts", options.facts))
    }
    with report_warnings():
        paths = model.export(place, format=options.format, nodes=options.nodes, **more)
    for path in () if shown else paths:
        print(path)
    report(f"{count_noun(model.num_entities, 'entity')}, {shape}")
    return 0
