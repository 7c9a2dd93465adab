#!/usr/bin/env python
"""Shows what the step of the paper's published code does, beside that of its text; see --help."""

from benchmarks.paper_code_step import main

if __name__ == "__main__":
    main()
