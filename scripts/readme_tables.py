#!/usr/bin/env python
"""Renews the tables of the README and of scripts/results/README.md from the stored results."""

from pathlib import Path

from sheafprop.report.stored_tables import fill_tables

if __name__ == "__main__":
    root = Path(__file__).parents[1]
    for document in (root / "README.md", root / "scripts" / "results" / "README.md"):
        text, count = fill_tables(document.read_text(encoding="utf-8"), root)
        document.write_text(text, encoding="utf-8")
        print(f"{document}: {count} tables are those of the stored results")
