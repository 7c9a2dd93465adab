#!/usr/bin/env python
"""Measures on validation what each ingredient of the preset best is worth; see --help."""

from benchmarks.completion_ablations import main

if __name__ == "__main__":
    main()
