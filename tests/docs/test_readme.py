"""What the README and the chapters print is what the code does and what the stored results say."""

import re
import statistics
from pathlib import Path

import pytest
from benchmarks.cells import read_records
from benchmarks.tables.figures import FAMILIES
from benchmarks.tables.stored_tables import fill_tables, marked_documents

from sheafprop.config_files import load_config
from sheafprop.report.published import NEIGHBOURS, published_rows
from sheafprop.report.tables import NOTHING

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LAYER = (ROOT / "docs" / "layer.md").read_text(encoding="utf-8")
MARKED = [path.relative_to(ROOT).as_posix() for path in marked_documents(ROOT)]
PYTHON = re.compile(r"```py(?:thon)?\n(.*?)```", flags=re.DOTALL)


def test_the_readme_is_short():
    assert len(TEXT.splitlines()) < 200


def test_the_demo_runs_as_printed(capsys):
    (code,) = PYTHON.findall(TEXT)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(compile(code, "README.md", "exec"), {})
    expected = re.search(r"print\(.*\)  # (.*)", code)
    assert expected is not None
    assert capsys.readouterr().out.strip() == expected.group(1)


def test_the_chapter_on_the_layer_runs_as_printed():
    demo, *others = PYTHON.findall(LAYER)
    assert [demo] == PYTHON.findall(TEXT)
    assert "assert torch.allclose" in others[0]
    scope = {}
    for code in (demo, *others):
        exec(compile(code, "docs/layer.md", "exec"), scope)
    assert scope["out"].shape == (4, 2)
    assert scope["result"].converged


@pytest.mark.parametrize("document", MARKED)
def test_tables_are_those_of_the_stored_results(document):
    printed = (ROOT / document).read_text(encoding="utf-8")
    text, count = fill_tables(printed, ROOT)
    assert text == printed, "run scripts/readme_tables.py"
    # Other tables are written where they are measured.
    ends = printed.count("<!-- end -->") - printed.count("<!-- measured by ")
    assert count == printed.count("<!-- results ") == ends >= 1


def test_what_the_corrected_choice_of_merged_changed_is_what_is_stored():
    records = read_records(ROOT / "scripts/results/completion.jsonl")
    text = (ROOT / "scripts/results/README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if "prototype section is selected" in line)
    expected, counts = [], []
    for preset in ("best", "best, share from validation"):
        for version in ("v1", "v2", "v3", "v4"):
            found = [
                record["hits@10"]
                for record in records
                if (record["dataset"], record["model"]) == (f"WN18RR_{version}", "rotate")
                and (record["preset"], record["protocol"]) == (preset, "merged")
            ]
            expected.append(f"{100 * statistics.fmean(found):.1f}")
            counts.append(str(len(found)))
    assert re.findall(r"\d+\.\d", row.replace("0.1.0", "")) == expected
    assert f"; {', '.join(counts[:4])} seeds)" in row
    assert counts[4:] == ["3"] * 4


@pytest.mark.parametrize(
    ("document", "least"), [("docs/results.md", 32), ("scripts/results/README.md", 0)]
)
def test_published_figures_were_looked_up_and_are_of_the_protocol_of_their_table(document, least):
    protocol, families, found = None, {v: k for k, v in FAMILIES.items()}, 0
    for line in (ROOT / document).read_text(encoding="utf-8").splitlines():
        if title := re.fullmatch(r"\| (\S+), (\w+) \| v1 \| v2 \| v3 \| v4 \|", line):
            family, protocol = families[title[1]], title[2]
        row = re.match(r"\| (.+?)( †)? \\\[(.+)\\\] \|(.*) \|$", line)
        if row is None:
            continue
        method, near, source, figures = row.groups()
        group = NEIGHBOURS[protocol][0] if near else protocol
        assert source not in ("recalled", "second-hand")
        for version, cell in enumerate(figures.split("|"), 1):
            name = f"{family}_v{version}"
            rows = published_rows("completion", group, name, marks=("paper", "read"))
            (own,) = (r for r in rows if (r["method"], r["source"]) == (method, source))
            hits = NOTHING if own["hits@10"] is None else f"{100 * own['hits@10']:.1f}"
            mrr = "" if own["mrr"] is None else f" ({own['mrr']:.3f})"
            assert cell.strip() == hits + mrr
            found += 1
    assert found >= least


def test_a_table_of_unknown_kind_is_named():
    with pytest.raises(ValueError, match="there is no table 'completed'; there are ablations"):
        fill_tables("<!-- results scripts/results/x.json completed -->\n<!-- end -->", ROOT)


def test_the_documents_with_tables_are_found(tmp_path):
    assert {"README.md", "docs/results.md", "scripts/results/README.md"} <= set(MARKED)
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts" / "results").mkdir(parents=True)
    marked = "<!-- results scripts/results/x.jsonl service -->\n<!-- end -->\n"
    for name, text in (("README.md", "no table\n"), ("docs/a.md", "a\n"), ("docs/b.md", marked)):
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts/results/README.md").write_text(marked)
    found = [path.relative_to(tmp_path).as_posix() for path in marked_documents(tmp_path)]
    assert found == ["docs/b.md", "scripts/results/README.md"]


@pytest.mark.parametrize("document", ["README.md", "docs/runs.md", "docs/results.md"])
def test_every_named_configuration_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"--config (\S+)", text) + re.findall(r"configs/\S+\.yaml", text)
    assert named
    for path in named:
        assert load_config(path)
    for path in re.findall(r"(scripts/\w+\.(?:sh|py))", text):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_lead_to_files_and_headings(document):
    place = ROOT / document
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", place.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        file = place.parent / path if path else place
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in slugs, target


def test_what_contributors_look_up_stands_where_they_are_sent():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text.partition("## Where to look")[2].partition("\n## ")[0].strip().splitlines()[2:]
    assert len(rows) >= 8
    seen, folder = [], ROOT
    for row in rows:
        names = re.findall(r"`([\w./]+)`", row.split("|")[2])
        for name in names:
            if name.endswith(".py"):
                place = ROOT / name if "/" in name else folder / name
                assert place.is_file(), name
                seen.append(place.read_text(encoding="utf-8"))
                folder = place.parent
        for name in names:
            if not name.endswith(".py"):
                pattern = rf"^ *(def {name}\(|{name}\b.* = )"
                assert any(re.search(pattern, part, re.MULTILINE) for part in seen), name
