"""``sheafprop inspect``: what is in a folder of triples."""

import json
from collections.abc import Sequence

from sheafprop.cli.verb_parser import VerbParser, file_options, tell


def run(words: Sequence[str]) -> int:
    """Tells what a file or folder of triples holds."""
    parser = VerbParser(
        "inspect",
        "Count what a file or folder of triples holds, and name what looks wrong.",
        "sheafprop inspect data/ --figure histograms.png",
    )
    parser.add_argument("path", help="a folder with *.txt or *.tsv files, or one file")
    parser.add_file_options()
    parser.add_argument("--json", action="store_true", help="plain values instead of text")
    parser.add_argument("--figure", metavar="PNG", help="draw degree and relation histograms")
    options = parser.parse_args(list(words))

    from sheafprop.service.graph_inspection import inspect_graph

    found = inspect_graph(options.path, **file_options(options))
    if options.json:
        print(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    else:
        print(found.summary())
    if options.figure:
        from sheafprop.service.inspection_figure import draw_inspection

        draw_inspection(found, options.figure)
        tell(f"figure: {options.figure}")
    return 0
