#!/usr/bin/env python
"""Counts the predictions that the service of the examples gives a second; see --help."""

from benchmarks.serving_benchmark import main

if __name__ == "__main__":
    main()
