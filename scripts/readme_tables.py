#!/usr/bin/env python
"""Writes the tables of the README, docs/ and scripts/results/README.md from stored results."""

import argparse
from pathlib import Path

from benchmarks.command_line import report_errors
from benchmarks.tables.stored_tables import fill_tables, marked_documents

from sheafprop.files import write_text

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    root = Path(__file__).parents[1]
    with report_errors(parser):
        for document in marked_documents(root):
            text, count = fill_tables(document.read_text(encoding="utf-8"), root)
            write_text(document, text)
            print(f"{document}: {count} tables are those of the stored results")
