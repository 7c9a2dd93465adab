"""How reports write numbers, text and tables; the results table."""

import math
import statistics

import pytest

from sheafprop.report.tables import (
    duration,
    escape,
    markdown_table,
    mean_with_error,
    plain_table,
    result_table,
    size,
    strata_table,
    terminal_table,
)
from tests.report.records import entry, record, scores

HEURISTIC = "edge-type heuristic (mean rank of ties)"


def cells(table):
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return rows[0], rows[2:]


def test_one_run():
    header, rows = cells(result_table([record(value=0.6)]))
    assert header == ["method", "protocol", "Hits@1", "Hits@3", "Hits@10", "MRR"]
    assert rows[0] == ["RotatE + sheaf propagation", "full", "30.0", "48.0", "60.0", "0.360"]
    assert [row[0] for row in rows[:3]] == [
        "RotatE + sheaf propagation",
        "RotatE, random vectors (no propagation)",
        HEURISTIC,
    ]
    # The record lists sampled50 first; full leads, and the two never mix.
    assert [row[1] for row in rows] == ["full"] * 3 + ["sampled50"] * 3
    assert rows[3][4] == "90.0"


def test_seeds_are_averaged_with_standard_error():
    values = [0.6, 0.63, 0.69]
    runs = [record(f"r{s}", seed=s, value=value) for s, value in enumerate(values)]
    header, rows = cells(result_table(runs))
    assert header[-1] == "seeds"
    mean = 100 * sum(values) / 3
    error = 100 * statistics.stdev(values) / math.sqrt(3)
    assert rows[0][4] == f"{mean:.1f} ± {error:.1f}" == "64.0 ± 2.6"
    assert rows[0][5] == "0.384 ± 0.016"
    assert rows[0][-1] == "3"
    heuristic = [row for row in rows if row[0] == HEURISTIC and row[1] == "full"]
    assert [(row[4], row[-1]) for row in heuristic] == [("20.0", "3, all equal")]


def test_baseline_without_model_is_averaged_where_the_split_follows_the_seed():
    runs = [
        record(f"{model}{seed}", model, seed, heuristic=0.2 + 0.1 * seed)
        for model in ("RotatE", "TransE")
        for seed in (0, 1)
    ]
    _, rows = cells(result_table(runs))
    heuristic = [row for row in rows if row[0] == HEURISTIC and row[1] == "full"]
    assert [(row[4], row[-1]) for row in heuristic] == [("25.0 ± 5.0", "2")]


def test_baseline_that_differs_within_a_seed_is_shown_for_each_run():
    runs = [record("a", "RotatE", heuristic=0.2), record("b", "TransE", heuristic=0.3)]
    _, rows = cells(result_table(runs))
    names = [row[0] for row in rows if "heuristic" in row[0] and row[1] == "full"]
    assert names == [rf"{HEURISTIC} \[a\]", rf"{HEURISTIC} \[b\]"]


def test_two_models_stay_apart_before_the_baselines_that_they_share():
    _, rows = cells(result_table([record(), record("transe", "TransE", value=0.5)]))
    assert [row[0] for row in rows if row[1] == "full"] == [
        "RotatE + sheaf propagation",
        "RotatE, random vectors (no propagation)",
        "TransE + sheaf propagation",
        "TransE, random vectors (no propagation)",
        HEURISTIC,
    ]


def methods_of(*runs):
    """The rows of the table of runs that list these methods."""
    records = []
    for number, names in enumerate(runs):
        run = record(f"r{number}", seed=number)
        run["test"] = [
            entry(name, 0.1 + 0.05 * place + 0.01 * number) for place, name in enumerate(names)
        ]
        records.append(run)
    return [row[0] for row in cells(result_table(records))[1]]


def test_rows_have_the_order_of_the_results():
    methods = [
        "RotatE + episodes + proximity",
        "RotatE + episodes",
        "RotatE + sheaf propagation + proximity",
        "RotatE + sheaf propagation",
        "RotatE, mixed start (no propagation)",
        "RotatE, mean of messages, one step",
        "proximity alone",
        "proximity after the edge-type filter",
    ]
    assert methods_of(methods) == methods
    assert methods_of(methods[::-1]) == methods[::-1]
    # A run with fewer methods, or with one more, keeps its order too.
    assert methods_of(methods, methods[3:]) == methods
    assert methods_of(methods[3:], methods) == methods
    assert methods_of(methods, [*methods[:6], "another", *methods[6:]]) == [
        *methods[:6],
        "another",
        *methods[6:],
    ]


def test_the_heuristic_is_shown_under_both_conventions_for_ties():
    run = record()
    more = {"expected_hits@10_50": 0.625, "expected_mrr_50": 0.25}
    for each in run["test"]:
        if each["method"] == "edge-type heuristic" and each["protocol"] == "sampled50":
            each["metrics"] |= more
    _, rows = cells(result_table([run]))
    found = [row for row in rows if "heuristic" in row[0]]
    assert [(row[0], row[1]) for row in found] == [
        (HEURISTIC, "full"),
        (HEURISTIC, "sampled50"),
        ("edge-type heuristic (expectation over ties)", "sampled50"),
    ]
    assert found[-1][4:] == ["62.5", "0.250"]


@pytest.mark.parametrize("values", [(0.6, 0.7), (0.6, 0.6)])
@pytest.mark.parametrize("seed", [0, None])
def test_runs_of_one_seed_are_never_averaged(values, seed):
    runs = [record(name, seed=seed, value=v) for name, v in zip("ab", values, strict=True)]
    _, rows = cells(result_table(runs))
    assert [row[0] for row in rows[:2]] == [
        r"RotatE + sheaf propagation \[a\]",
        r"RotatE + sheaf propagation \[b\]",
    ]
    assert [row[4] for row in rows[:2]] == [f"{100 * value:.1f}" for value in values]


def configured(name, seed, config, value):
    run = record(name, seed=seed, value=value)
    run["run"]["config_hash"] = config
    return run


def figures_of(*runs):
    _, rows = cells(result_table(runs))
    return [
        (row[0].removeprefix("RotatE + sheaf propagation").strip(), row[4], row[-1])
        for row in rows
        if row[0].startswith("RotatE + sheaf propagation") and row[1] == "full"
    ]


def test_configurations_are_never_averaged():
    # Seeds alone do not tell them apart: the second run has another learning rate, not only seed.
    assert figures_of(configured("wide", 3, "c1", 0.6), configured("narrow", 4, "c2", 0.5)) == [
        (r"\[wide\]", "60.0", "1"),
        (r"\[narrow\]", "50.0", "1"),
    ]


def test_seeds_are_averaged_within_each_configuration():
    runs = [
        configured("wide", 3, "c1", 0.6),
        configured("narrow", 3, "c2", 0.5),
        configured("wide-seed4", 4, "c1", 0.62),
    ]
    assert figures_of(*runs) == [
        (r"\[wide\]", "61.0 ± 1.0", "2"),
        (r"\[narrow\]", "50.0", "1"),
    ]
    # Full names where two configurations differ only in the seeds of their names.
    runs += [configured(f"narrow-seed{seed}", seed, "c3", 0.4) for seed in (5, 6)]
    runs[1]["run"]["name"] = "narrow-seed3"
    assert [name for name, *_ in figures_of(*runs)] == [
        r"\[wide\]",
        r"\[narrow-seed3\]",
        r"\[narrow-seed5, narrow-seed6\]",
    ]


def test_runs_of_one_seed_in_one_of_several_configurations_have_their_own_names():
    runs = [configured(name, 7, name[0], 0.5) for name in ("a1", "a2", "b1")]
    assert [name for name, *_ in figures_of(*runs)] == [r"\[a1\]", r"\[a2\]", r"\[b1\]"]


def test_methods_that_do_not_name_their_model():
    runs = [record("a", "RotatE"), record("b", "TransE")]
    for run, value in zip(runs, (0.5, 0.25), strict=True):
        run["test"] = [entry("sheaf propagation", value)]
    _, rows = cells(result_table(runs))
    assert [(row[0], row[4]) for row in rows] == [
        ("RotatE: sheaf propagation", "50.0"),
        ("TransE: sheaf propagation", "25.0"),
    ]


def test_mark_and_unknown_protocol():
    run = record()
    mark = "selected on half of the test"
    run["test"] += [
        entry("RotatE + sheaf propagation", 0.7, "merged", mark),
        {"method": "x", "protocol": "house rules", "metrics": {"hits@10": 0.5}},
    ]
    table = result_table([run])
    _, rows = cells(table)
    assert rows[-2][1] == "merged †"
    assert rows[-2][4] == "70.0"
    assert rows[-1] == ["x", "house rules", "–", "–", "50.0", "–"]  # noqa: RUF001
    assert table.endswith(f"† {mark}")
    assert terminal_table([run]).endswith(f"† {mark}")


def test_figures_of_another_tie_rule_are_not_shown_as_the_protocols_own():
    run = record()
    run["test"] = [{"method": "m", "protocol": "full", "metrics": {"hits@10_optimistic": 0.9}}]
    _, rows = cells(result_table([run]))
    assert "90.0" not in rows[0]


def test_mean_needs_every_seed():
    runs = [record(f"r{s}", seed=s) for s in range(2)]
    (first,) = (
        each
        for each in runs[0]["test"]
        if (each["method"], each["protocol"]) == ("RotatE + sheaf propagation", "full")
    )
    del first["metrics"]["hits@3"]
    _, rows = cells(result_table(runs))
    assert rows[0][3] == "–"  # noqa: RUF001
    assert rows[0][4] == "60.0 ± 0.0"


def test_nan_is_no_score():
    run = record()
    run["test"][0]["metrics"]["mrr_50"] = math.nan
    with pytest.raises(ValueError, match="finite"):
        result_table([run])


def stratified(seed, gain=0.0):
    run = record(f"r{seed}", seed=seed)
    for each in run["test"]:
        own = each["method"].endswith("sheaf propagation")
        if each["protocol"] == "full":
            each["strata"] = {
                "half-link observed": {"count": 300} | scores(0.8 + gain if own else 0.4),
                "unconnected": {"count": 12 + 2 * seed} | scores(0.25 if own else 0.0),
            }
    return run


def test_strata_are_those_of_one_protocol_with_their_counts():
    assert strata_table([record()]) == ""
    header, rows = cells(strata_table([stratified(0), stratified(1, 0.1)]))
    assert header == ["`full`", "half-link observed", "unconnected"]
    assert rows == [
        ["queries", "300", "13"],
        ["RotatE + sheaf propagation", "85.0 ± 5.0 (0.510 ± 0.030)", "25.0 ± 0.0 (0.150 ± 0.000)"],
        [
            "RotatE, random vectors (no propagation)",
            "40.0 ± 0.0 (0.240 ± 0.000)",
            "0.0 ± 0.0 (0.000 ± 0.000)",
        ],
        [HEURISTIC, "40.0 (0.240)", "0.0 (0.000)"],
    ]


def test_a_stratum_that_a_seed_lacks_has_no_figure():
    runs = [stratified(0), stratified(1)]
    del runs[1]["test"][3]["strata"]["unconnected"]
    _, rows = cells(strata_table(runs))
    assert rows[0][2] == "13"
    assert rows[1][1:] == ["80.0 ± 0.0 (0.480 ± 0.000)", "– (–)"]  # noqa: RUF001


def test_without_test():
    run = record()
    del run["test"]
    assert "No test triples" in result_table([run])
    assert "No test triples" in terminal_table([run])


def test_data_sets_have_tables_of_their_own():
    runs = [record(), record("w", dataset="WN18RR_v1", mode="fully-inductive", value=0.8)]
    table = result_table(runs)
    first, second = table.split("**WN18RR_v1 (fully-inductive)**")
    assert first.startswith("**umls (semi-inductive)**")
    assert cells(first)[1][0][4] == "60.0"
    assert cells(second)[1][0][4] == "80.0"


def test_labels_do_not_break_the_table():
    run = record()
    run["test"] = [entry("größe|漢字 *x*\n<b>", 0.5)]
    assert r"größe\|漢字 \*x\* \<b>" in result_table([run])


def test_terminal_columns_are_aligned():
    run = record()
    run["test"] += [entry("漢字 propagation", 0.123), entry("e\u0301 propagation", 1.0)]
    lines = terminal_table([run]).splitlines()
    assert lines[0] == "umls (semi-inductive)"
    assert "|" not in "".join(lines)
    assert lines[1].split() == ["method", "protocol", "Hits@1", "Hits@3", "Hits@10", "MRR"]

    def columns(line):  # wide letters take two columns, the combining accent none
        return len(line) + sum(char in "漢字" for char in line) - line.count("\u0301")

    full_rows = [line for line in lines if line.endswith(tuple("0123456789"))]
    assert len({columns(line) for line in full_rows}) == 1
    assert columns(lines[2]) == columns(full_rows[0])
    assert set(lines[2]) == {"-"}


def test_the_error_is_that_of_the_mean():
    # The standard deviation of 1, 2 and 3 is 1.
    assert mean_with_error([1.0, 2.0, 3.0], digits=3) == "2.000 ± 0.577"
    assert mean_with_error([0.5, 0.5]) == "0.5 ± 0.0"
    assert mean_with_error([0.25]) == "0.2"


@pytest.mark.parametrize("align", [None, "lr"])
def test_the_first_column_of_a_table_is_left_aligned(align):
    table = markdown_table(["a", "b"], [["1", "2"]], align)
    assert table == "| a | b |\n| :--- | ---: |\n| 1 | 2 |"
    assert markdown_table(["a"], [], "r") == "| a |\n| ---: |"


def test_what_markdown_would_read_is_escaped():
    assert escape("a|b *c*\n `d`") == r"a\|b \*c\* \`d\`"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0.04, "0.0 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (3599.6, "1 h 00 min"),
        (7265, "2 h 01 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "–"), (512, "512 B"), (5 * 2**20, "5 MiB"), (1.5 * 2**40, "1536.00 GiB")],  # noqa: RUF001
)
def test_size(num_bytes, text):
    assert size(num_bytes) == text


def test_cells_are_shown_as_they_are():
    assert escape("a|b *c*\n[d] `e` <f>") == r"a\|b \*c\* \[d\] \`e\` \<f>"
    table = markdown_table(("name", "x"), [[escape("a|b"), "1"]], "lr")
    assert table.splitlines() == ["| name | x |", "| :--- | ---: |", r"| a\|b | 1 |"]


def test_columns_of_wide_letters_are_aligned():
    lines = plain_table(("name", "x"), [[["ab", "1"]], [["\u6570\u6570", "22"]]], "lr").splitlines()
    assert lines == ["name   x", "-" * 8, "ab     1", "-" * 8, "\u6570\u6570  22"]
