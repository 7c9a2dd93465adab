#!/usr/bin/env python
"""Trains, propagates and ranks on the inductive completion benchmarks; see --help.

``--paper-code-step`` shows instead what the step of the paper's published code does.
"""

import sys

if __name__ == "__main__":
    if "--paper-code-step" in sys.argv:
        from paper_code_step import main

        main([word for word in sys.argv[1:] if word != "--paper-code-step"])
    else:
        from benchmarks.completion import main

        main()
