#!/usr/bin/env python
"""Trains, propagates and ranks on the inductive completion benchmarks; see --help."""

from benchmarks.completion import main

if __name__ == "__main__":
    main()
