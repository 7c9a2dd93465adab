"""``sheafprop export``: vectors for other programs."""

from collections.abc import Sequence
from pathlib import Path

from sheafprop.cli.command_parser import CommandParser, is_output


def run(words: Sequence[str]) -> int:
    """Writes the vectors of a model."""
    parser = CommandParser(
        "export",
        "Write the vectors of a model for other programs.",
        "sheafprop export extended --out vectors.txt --format word2vec",
    )
    parser.add_model()
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="the file to write, or - for standard output"
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "npy", "tsv", "word2vec"),
        help="(default: by FILE's name: .safetensors, .npy, .tsv, .txt)",
    )
    parser.add_argument(
        "--relations",
        metavar="FILE",
        help="also write the relations, as safetensors, for 'import arrays --relation-parameters'",
    )
    parser.add_argument("--facts", metavar="FILE", help="also write the facts, as TSV")
    options = parser.parse_args(list(words))
    shown = is_output(options.out)
    if shown and options.format not in ("tsv", "word2vec"):
        parser.error("standard output takes --format tsv or word2vec")

    model = parser.load_model(options)
    place = Path("/dev/stdout" if shown else options.out).expanduser()
    more = {
        name: None if given is None else Path(given).expanduser()
        for name, given in (("relations", options.relations), ("facts", options.facts))
    }
    for path in model.export(place, format=options.format, **more):
        if not shown:
            print(path)
    return 0
