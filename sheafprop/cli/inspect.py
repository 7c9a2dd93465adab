"""``sheafprop inspect``: what is in a folder of triples, or in a model."""

import json
from collections.abc import Sequence

from sheafprop.cli.command_parser import (
    CommandParser,
    file_options,
    input_path,
    is_output,
    report,
    report_warnings,
    write_output,
)


def run(words: Sequence[str]) -> int:
    """Tells what a file or folder of triples, or a model, holds."""
    parser = CommandParser(
        "inspect",
        "Count what a file or folder of triples, or a model, holds, and name what looks wrong.",
        "sheafprop inspect data/ --figure histograms.png",
    )
    parser.add_argument(
        "path", help="a folder with *.txt or *.tsv files, one file, a run folder or a model folder"
    )
    parser.add_file_options()
    parser.add_argument("--json", action="store_true", help="plain values instead of text")
    parser.add_argument(
        "--relations", action="store_true", help="a table of all relations with their triples"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="of a model folder, compare the SHA-256 of every file and rebuild the indexes of a "
        "mapped one, instead of counting",
    )
    parser.add_argument("--figure", metavar="PNG", help="draw degree and relation histograms")
    options = parser.parse_args(list(words))
    if options.json and options.relations:
        parser.error("--json names all relations: give it without --relations")
    if options.verify and (options.json or options.relations or options.figure):
        parser.error("--verify counts nothing: give it alone")
    if options.verify:
        from sheafprop.pretrained.sheaf_model import SheafModel

        model = SheafModel.load(input_path(options.path), verify="full")
        print(f"{options.path}: all files of {model} are as they were written")
        return 0
    if options.figure and is_output(options.figure):
        parser.error("--figure needs the name of a file")

    from sheafprop.report.inspection import inspect_graph

    with report_warnings():
        found = inspect_graph(input_path(options.path), **file_options(options))
    if options.json:
        write_output(json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n")
    elif options.relations:
        rows = [f"{relation}\t{count}\n" for relation, count in found.relations.items()]
        write_output("".join(["relation\ttriples\n", *rows]))
    else:
        print(found.summary())
    if options.figure:
        from sheafprop.report.figures import draw_inspection

        draw_inspection(found, options.figure)
        report(f"figure: {options.figure}")
    return 0
