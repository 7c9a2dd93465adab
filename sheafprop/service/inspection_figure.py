from io import BytesIO
from os import PathLike

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sheafprop.io import write_bytes
from sheafprop.service.graph_inspection import GraphInspection

_COLOR = "#0072B2"
_RELATIONS = 20


def draw_inspection(inspection: GraphInspection, path: str | PathLike[str]) -> None:
    """Draws how many entities have each degree, and how many triples each relation, as PNG.

    Raises:
        StorageError: If the file cannot be written.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    value, count = np.unique(np.array(inspection.degrees, dtype=np.int64), return_counts=True)
    left.loglog(value, count, "o", color=_COLOR, markersize=3.5)
    left.set_xlabel("degree")
    left.set_ylabel("entities")
    left.grid(color="#E3E3E3", linewidth=0.8)
    top = list(inspection.relations.items())[:_RELATIONS]
    rest = len(inspection.relations) - len(top)
    right.barh(range(len(top)), [number for _, number in top], color=_COLOR)
    names = [name if len(name) <= 40 else "…" + name[-39:] for name, _ in top]
    right.set_yticks(range(len(top)), names, fontsize=7, parse_math=False)
    right.invert_yaxis()
    right.set_xlabel("triples" + (f" ({rest} more relations not shown)" if rest > 0 else ""))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_bytes(path, buffer.getvalue())
