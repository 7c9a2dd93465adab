#!/usr/bin/env python
"""Times extensions and predictions of a large model; see --help."""

from benchmarks.service_benchmark import main

if __name__ == "__main__":
    main()
