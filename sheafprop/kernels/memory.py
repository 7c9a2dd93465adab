"""Large allocations are announced before they happen."""

import logging

_LOGGER = logging.getLogger("sheafprop")
_ANNOUNCED = 10**9


def announce(num_bytes: int, what: str) -> None:
    """Logs an estimate of an allocation above 1 GB."""
    if num_bytes > _ANNOUNCED:
        _LOGGER.warning("Allocating about %.1f GB for %s", num_bytes / 1e9, what)
