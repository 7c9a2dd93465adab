#!/usr/bin/env python
"""Renews the tables of the README, docs/results.md and scripts/results/README.md."""

import argparse
from pathlib import Path

from benchmarks.command_line import report_errors
from benchmarks.tables.stored_tables import fill_tables

from sheafprop.files import write_text

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    root = Path(__file__).parents[1]
    with report_errors(parser):
        documents = ("README.md", "docs/results.md", "scripts/results/README.md")
        for document in map(root.joinpath, documents):
            text, count = fill_tables(document.read_text(encoding="utf-8"), root)
            write_text(document, text)
            print(f"{document}: {count} tables are those of the stored results")
