"""``sheafprop partition``: partitions a graph for propagation by several processes."""

from collections.abc import Sequence
from pathlib import Path

from sheafprop.cli.command_parser import (
    FACTS_HELP,
    CommandParser,
    file_options,
    input_path,
    report,
    show_progress,
)


def run(words: Sequence[str]) -> int:
    """Partitions files of facts and prints the costs of a propagation step."""
    parser = CommandParser(
        "partition",
        "Partition a graph for the processes of 'torchrun -m sheafprop propagate', and print how "
        "much they will exchange.",
        "sheafprop partition facts.tsv --parts 8 --method metis --out parts",
    )
    add = parser.add_argument
    add("facts", nargs="+", help=FACTS_HELP)
    add("--parts", type=int, required=True, metavar="P", help="number of parts, one per process")
    add(
        "--method",
        default="metis",
        metavar="METHOD",
        help="metis: few facts between parts (needs pymetis); hash: parts of equal size that "
        "ignore the graph, for more than 10^8 facts; or a .npy file with one part per entity, in "
        "the order of first appearance in the facts (default: metis)",
    )
    parser.add_folder("output folder of the parts", "an existing folder of parts")
    add(
        "--width",
        type=int,
        default=128,
        metavar="W",
        help="dimension of the vectors times number of sections, for the printed sizes (default: "
        "128)",
    )
    parser.add_file_options()
    options = parser.parse_args(list(words))
    if options.parts < 1:
        parser.error(f"--parts must be at least 1 (got {options.parts})")

    from sheafprop.data.partition import import_metis, read_partition
    from sheafprop.pretrained.mapped.part_folder import (
        check_parts_target,
        number_facts,
        write_parts,
    )
    from sheafprop.progress import progress_bar

    out = Path(options.out).expanduser()
    check_parts_target(out, options.overwrite)
    # Checked first, since reading the facts takes minutes.
    if options.method == "metis":
        import_metis()
    elif options.method != "hash":
        read_partition(input_path(options.method), None, options.parts)
    paths = [input_path(name) for name in options.facts]
    reading = file_options(options)
    size = sum(path.stat().st_size for path in paths if path.is_file())
    with progress_bar(size, desc="facts", shown=show_progress(), unit="B") as bar:
        numbers = number_facts(paths, reading, lambda count: bar.update(min(count, size - bar.n)))
    partition = _partition(options.method, numbers, options.parts)
    record = write_parts(
        out,
        numbers,
        partition,
        inputs=paths,
        options=reading,
        method=options.method,
        overwrite=options.overwrite,
    )
    report(_summary(record, options.width))
    print(out)
    return 0


def _partition(method, numbers, parts):  # type: ignore[no-untyped-def]
    from sheafprop.data.partition import hash_partition, metis_partition, read_partition

    size = len(numbers.labels)
    if method == "hash":
        return hash_partition(size, parts)
    if method == "metis":
        return metis_partition(numbers.edge_index, size, parts)
    return read_partition(input_path(method), size, parts)


def _summary(record, width):  # type: ignore[no-untyped-def]
    """Formats the costs of a step for float32 vectors of a width, if all entities are new."""
    from sheafprop.checks import count_noun
    from sheafprop.pretrained.mapped.cost_estimate import show_bytes

    costs, row = record["costs"], 4 * width
    sizes = zip(costs["entities"], costs["halo"], costs["messages"], strict=True)
    # Features, results, translations and the start, and the measured memory of indexing the facts.
    memory = max((own + halo) * 4 * row + 96 * m for own, halo, m in sizes)
    return (
        f"{count_noun(record['facts'], 'fact')} of {count_noun(record['entities'], 'entity')} in "
        f"{count_noun(record['num_parts'], 'part')} by {record['method']}\n"
        f"{costs['cut']:.1%} of the facts are cut; rows sent per entity: "
        f"{costs['rows_sent']:.2f}; largest part: {costs['balance']:.2f} times the mean\n"
        f"with {width} float32 numbers per entity, a process receives at most "
        f"{show_bytes(max(costs['halo']) * row)} per step and needs about {show_bytes(memory)}"
    )
