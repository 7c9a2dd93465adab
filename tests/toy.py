"""A small graph with structure: places on a ring, relations that are steps around it."""

from pathlib import Path

from sheafprop.data import InductiveData, assemble, write_triples

SIZE = 24
STEPS = {"next": 1, "skip": 2, "far": 7}


def ring(prefix: str, size: int = SIZE) -> list[tuple[str, str, str]]:
    return [
        (f"{prefix}{i}", name, f"{prefix}{(i + step) % size}")
        for i in range(size)
        for name, step in STEPS.items()
    ]


def parts(mode: str) -> dict[str, list[tuple[str, str, str]]]:
    """Label triples of a semi-inductive or fully inductive ring."""
    if mode == "fully-inductive":
        other = ring("b", 18)
        return {
            "train": [t for i, t in enumerate(ring("a")) if i % 9],
            "train_valid": [t for i, t in enumerate(ring("a")) if i % 9 == 0],
            "observed": [t for i, t in enumerate(other) if i % 6 > 1],
            "valid": [t for i, t in enumerate(other) if i % 6 == 0],
            "test": [t for i, t in enumerate(other) if i % 6 == 1],
        }
    new = {f"a{i}" for i in range(3, SIZE, 4)}
    old, touching = [], []
    for triple in ring("a"):
        (touching if {triple[0], triple[2]} & new else old).append(triple)
    return {
        "train": [t for i, t in enumerate(old) if i % 10],
        "train_valid": [t for i, t in enumerate(old) if i % 10 == 0],
        "observed": [t for i, t in enumerate(touching) if i % 5 > 1],
        "valid": [t for i, t in enumerate(touching) if i % 5 == 0],
        "test": [t for i, t in enumerate(touching) if i % 5 == 1],
    }


def toy_data(mode: str = "semi-inductive", without: tuple[str, ...] = ()) -> InductiveData:
    kept = {key: value for key, value in parts(mode).items() if key not in without}
    return assemble("ring", mode, **kept)  # type: ignore[arg-type]


FILES = {
    "train": "train.txt",
    "train_valid": "valid.txt",
    "observed": "inference.txt",
    "valid": "inference_valid.txt",
    "test": "inference_test.txt",
}


def write_folder(folder: Path, mode: str = "semi-inductive", without: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for key, triples in parts(mode).items():
        if key not in without:
            write_triples(folder / FILES[key], triples)
    return folder
