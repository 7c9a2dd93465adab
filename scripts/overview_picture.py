#!/usr/bin/env python
"""Draws the picture at the head of the README, docs/overview.png; see --help."""

from benchmarks.tables.overview_picture import main

if __name__ == "__main__":
    main()
