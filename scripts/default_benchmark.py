#!/usr/bin/env python
"""Trains, selects and tests plain folders with experiment/folder and with presets; see --help."""

from benchmarks.default_benchmark import main

if __name__ == "__main__":
    main()
