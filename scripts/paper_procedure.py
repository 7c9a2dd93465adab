#!/usr/bin/env python
"""Follows the paper's released procedure one change at a time; see --help."""

from benchmarks.paper_procedure import main

if __name__ == "__main__":
    main()
