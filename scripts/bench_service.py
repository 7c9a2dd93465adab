#!/usr/bin/env python
"""Times extensions and predictions of a large model; see --help."""

from sheafprop.experiments.service_benchmark import main

if __name__ == "__main__":
    main()
