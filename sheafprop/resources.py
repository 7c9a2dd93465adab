"""Files that come with the package."""

from pathlib import Path


def config_root() -> Path:
    """The folder of the configuration files, in an installed package or in a checkout."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"
