from benchmarks.tables.paper_tables import (
    OURS,
    THEIRS,
    curve_table,
    leak_table,
    procedure_report,
    procedure_table,
    seeds_table,
    steps_table,
)

from sheafprop.report.tables import NOTHING

PARTS = ("trained", "step", "start", "evaluated")


def record(choice=OURS, hits=0.4, dataset="fb237_v1", model="transe", seed=0):
    named = {"dataset": dataset, "model": model, "seed": seed, "hits@10": hits}
    return named | dict(zip(PARTS, choice, strict=True))


def rows(table):
    lines = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def changed(base, **parts):
    return tuple(parts.get(part, value) for part, value in zip(PARTS, base, strict=True))


def test_one_change_is_compared_with_ours_over_common_seeds():
    leak = changed(OURS, evaluated="iterations chosen on test")
    both = changed(OURS, start="normal start", step="released step")
    table = rows(
        procedure_table(
            [
                record(),
                record(hits=0.5, seed=1),
                record(changed(OURS, start="normal start"), 0.56, seed=1),
                record(leak, 0.41),
                record(both, 0.9),
                record(dataset="fb237_v2", hits=0.3),
            ]
        )
    )
    assert table["**our procedure**"] == ["45.0 ± 5.0", "30.0"]
    assert table["normal start"] == ["56.0 (+6.0)", NOTHING]
    assert table["iterations chosen on test (leak)"] == ["41.0 (+1.0)", NOTHING]
    assert table["the paper's figure"] == ["50.5", "61.1"]
    assert len(table) == 4


def test_the_released_procedure_is_taken_back_one_part_at_a_time():
    text = changed(THEIRS, step=OURS[1], evaluated=OURS[3])
    table = rows(
        procedure_table(
            [
                record(THEIRS, 0.55),
                record(changed(THEIRS, start=OURS[2]), 0.5),
                record(changed(THEIRS, trained=OURS[0]), 0.52),
                record(changed(THEIRS, trained="batches of pairs"), 0.1),
                record(changed(THEIRS, evaluated=OURS[3]), 0.56),
                record(changed(THEIRS, step=OURS[1]), 0.2),
                record(text, 0.57),
            ]
        )
    )
    assert table["**released procedure**"] == ["55.0"]
    assert table["our start"] == ["50.0 (-5.0)"]
    assert table["training as ours"] == ["52.0 (-3.0)"]
    assert table["iterations by validation"] == ["56.0 (+1.0)"]
    assert table["step of the text, iterations by validation"] == ["57.0 (+2.0)"]
    assert len(table) == 6


def test_the_spread_over_seeds_has_its_least_and_its_best():
    records = [record(hits=h, seed=s) for s, h in enumerate([0.4, 0.5, 0.45])]
    (line,) = seeds_table([*records, record(THEIRS, 0.5)]).splitlines()[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["fb237_v1", "TransE", "ours", "3", "40.0", "45.0", "50.0", "5.0", "50.5"]


def test_models_whose_training_ends_early_have_a_table_of_their_own():
    rotate = {"dataset": "WN18RR_v2", "model": "rotate", "iterations": 4}
    short = changed(OURS, trained="as we do, 40 epochs")
    records = [record(), record(dataset="WN18RR_v2")]
    records += [
        record(short, 0.3) | rotate | {"iterations": 1024},
        record(changed(short, evaluated=THEIRS[3]), 0.2) | rotate | {"iterations": 700},
        record(changed(short, evaluated="tails alone"), 0.9) | rotate,
        record(changed(short, step="released step"), 0.1) | rotate,
        record(short, 0.6, "WN18RR_v4", "transr") | {"iterations": 8},
        record(changed(OURS, trained="one batch an epoch"), 0.4) | rotate,
    ]
    assert procedure_table(records) == procedure_table(records[:2])
    lines = [
        [c.strip() for c in x.strip("|").split("|")] for x in steps_table(records).splitlines()
    ]
    name = ["WN18RR_v2", "RotatE", "as we do, 40 epochs"]
    assert lines[2:] == [
        [*name, "step of the text", "our start", "30.0 (1,024)", "20.0 (700)", "27.8"],
        [*name, "released step", "our start", "10.0 (4)", NOTHING, "27.8"],
        [*name[:2], "one batch an epoch", *OURS[1:3], "40.0 (4)", NOTHING, "27.8"],
        ["WN18RR_v4", "TransR", *short[:3], "60.0 (8)", NOTHING, "5.1"],
    ]


def test_the_report_has_the_tables_with_rows():
    whole, short = record(), record(changed(OURS, trained="as we do, 40 epochs"))
    short |= {"iterations": 4, "dataset": "fb237_v3"}
    one, other = procedure_table([whole]), steps_table([short])
    assert procedure_report([short]) == other
    assert procedure_report([whole]) == one
    assert procedure_report([short, whole]) == f"{one}\n\n{other}"
    again = record(seed=1)
    assert seeds_table([whole, again]) in procedure_report([whole, again])


def test_curves_are_in_the_order_of_their_epochs():
    base = {"dataset": "fb237_v1", "model": "se", "seed": 0, "held_out_hits@10": 0.2}
    base |= {"iterations": 8, "seconds_train": 61.0}
    points = [base | {"epochs": n, "validation_hits@10": n / 100} for n in (10, 5)]
    lines = curve_table(points).splitlines()
    assert "| 5 | 61.0 s | 20.0 | 5.0 | 8 |" in lines[2]
    assert "| 10 |" in lines[3]


def test_a_leak_is_bounded_by_the_best_of_the_curve_on_test():
    base = {"dataset": "WN18RR_v2", "model": "rotate", "preset": "paper", "protocol": "full"}
    curve = {"test_curve": [[1, 0.1], [2, 0.3], [4, 0.2]], "hits@10": 0.2}
    others = [base | {"protocol": "merged"} | curve, base | {"preset": "best"} | curve]
    lines = leak_table([base | curve, *others]).splitlines()
    assert len(lines) == 3
    assert "| WN18RR, RotatE |" in lines[2]
    assert "| 20.0, 30.0 (27.8) |" in lines[2]


def test_what_was_not_run_says_so():
    for table in (procedure_table, seeds_table, steps_table, curve_table):
        assert table([]) == "Not run yet."
    short = record(changed(OURS, trained="as we do, 40 epochs"))
    assert procedure_table([short]) == "Not run yet."
    assert seeds_table([record()]) == "Not run yet."  # one seed has no spread
