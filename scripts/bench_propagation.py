#!/usr/bin/env python
"""Times propagation steps and limits against other ways to compute them; see --help."""

from benchmarks.propagation_benchmark import main

if __name__ == "__main__":
    main()
