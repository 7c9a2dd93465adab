#!/usr/bin/env python
"""Trains on CoDEx-S with this package and with PyKEEN and compares the quality; see --help."""

from benchmarks.transductive import main

if __name__ == "__main__":
    main()
