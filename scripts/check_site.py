#!/usr/bin/env python
"""Checks that every internal link of the built site leads to a file and a place in it."""

import argparse
from pathlib import Path

from benchmarks.command_line import report_errors
from benchmarks.site import broken_links

from sheafprop.errors import DataError

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="folder of the built site")
    with report_errors(parser):
        site = parser.parse_args().site
        found, count = broken_links(site)
        if found or not count:
            raise DataError("\n".join(found) or f"{site} has no page with a link")
        print(f"{count} internal links lead somewhere")
