"""``sheafprop partition``: a graph in parts, one for each process that is to work on it."""

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
    """Cuts files of facts into parts and prints what a step of propagation will cost with them."""
    parser = CommandParser(
        "partition",
        "Cut a graph into parts, one for each process of 'torchrun -m sheafprop propagate', and "
        "print what these will exchange.",
        "sheafprop partition facts.tsv --parts 8 --method metis --out parts",
    )
    add = parser.add_argument
    add("facts", nargs="+", help=FACTS_HELP)
    add("--parts", type=int, required=True, metavar="P", help="how many processes there will be")
    add(
        "--method",
        default="metis",
        metavar="METHOD",
        help="metis: few facts between the parts (needs pymetis); hash: even parts, blind to the "
        "graph, for more than 10^8 facts; or a .npy file with a part for each entity, in the order "
        "in which the facts first name them (default: metis)",
    )
    parser.add_folder("the folder of the parts", "a folder of parts that is there")
    add(
        "--width",
        type=int,
        default=128,
        metavar="W",
        help="numbers in a vector, all sections together, for the printed bytes (default: 128)",
    )
    parser.add_file_options()
    options = parser.parse_args(list(words))
    if options.parts < 1:
        parser.error("--parts must be 1 or more")

    from sheafprop.data.partition import import_metis, read_partition
    from sheafprop.pretrained.mapped.part_folder import (
        check_parts_target,
        number_facts,
        write_parts,
    )
    from sheafprop.progress import progress_bar

    out = Path(options.out).expanduser()
    check_parts_target(out, options.overwrite)
    # Before facts are read for minutes.
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
    """What a step costs, for vectors of so many 4-byte numbers if all entities are new."""
    from sheafprop.checks import count_noun
    from sheafprop.pretrained.mapped.cost_estimate import show_bytes

    costs, row = record["costs"], 4 * width
    sizes = zip(costs["entities"], costs["halo"], costs["messages"], strict=True)
    # Features, results, translations and the start, and what brings facts into rows, as measured.
    memory = max((own + halo) * 4 * row + 96 * m for own, halo, m in sizes)
    return (
        f"{count_noun(record['facts'], 'fact')} of {count_noun(record['entities'], 'entity')} in "
        f"{count_noun(record['num_parts'], 'part')} by {record['method']}\n"
        f"cut {costs['cut']:.1%} of the facts, rows sent {costs['rows_sent']:.2f} an entity, "
        f"largest part {costs['balance']:.2f} of the mean\n"
        f"for {width} numbers of 4 bytes an entity: a process receives at most "
        f"{show_bytes(max(costs['halo']) * row)} a step and takes about {show_bytes(memory)}"
    )
