#!/usr/bin/env python
"""Draws what a run found: the iteration curve, an entity's energies, old and new entities.

python scripts/gallery.py runs/quickstart/rotate new_facts.tsv gallery
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.tables.model_figures import energy_map, entity_map

from sheafprop import SheafModel

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a finished run")
    parser.add_argument("facts", type=Path, help="triples of new entities, as TSV")
    parser.add_argument("out", type=Path, help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = SheafModel.load(options.run)
    larger = model.extend(options.facts)
    shutil.copy(options.run / "hits_by_iteration.png", options.out)
    if larger.num_entities == model.num_entities:
        parser.error(f"{options.facts} names no entity that is new to the model")
    new = larger.labels()[model.num_entities]
    energy_map(larger, new, options.out / "energy_map.png")
    entity_map(larger, options.out / "entity_map.png")
    print(f"pictures: {options.out}")
