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
    """Summarizes a file or folder of triples, or a model."""
    parser = CommandParser(
        "inspect",
        "Summarize a file or folder of triples, or a model, and report likely problems.",
        "sheafprop inspect data/ --figure histograms.png",
    )
    parser.add_argument(
        "path", help="a folder with *.txt or *.tsv files, one file, a run folder or a model folder"
    )
    parser.add_file_options()
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--relations",
        action="store_true",
        help="print a table of all relations with their numbers of triples",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check a model folder instead: compare the SHA-256 of every file and, for mapped "
        "folders, rebuild the indexes",
    )
    parser.add_argument("--figure", metavar="PNG", help="plot degree and relation histograms")
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
