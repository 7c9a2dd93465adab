#!/usr/bin/env python
"""Renews the tables of the README from scripts/results/."""

from pathlib import Path

from sheafprop.report.stored_tables import fill_tables

if __name__ == "__main__":
    root = Path(__file__).parents[1]
    readme = root / "README.md"
    text, count = fill_tables(readme.read_text(encoding="utf-8"), root)
    readme.write_text(text, encoding="utf-8")
    print(f"{count} tables are those of the stored results")
