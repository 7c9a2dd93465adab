"""Randomness that depends on what is drawn for, not on the order of drawing.

Every number is a pure function of ``(key, column, seed)``: the vector of an entity does not change
when other entities come or go, and a negative sample does not depend on batch size or on the number
of processes. The generator is splitmix64 in counter mode; everything runs on whole arrays.
"""

import hashlib
from collections.abc import Sequence
from typing import SupportsInt

import numpy as np
from numpy.typing import ArrayLike, NDArray

UInt64Array = NDArray[np.uint64]

_MASK = (1 << 64) - 1
GOLDEN_WORD = np.uint64(0x9E3779B97F4A7C15)
# One stream per kind of draw: equal keys and seeds must not give related numbers of two kinds.
_UNIFORM, _NORMAL, _INTEGERS = 0x756E69666F726D, 0x6E6F726D616C, 0x696E7465676572


def mix_words(values: UInt64Array) -> UInt64Array:
    """The finaliser of splitmix64, a bijection of 64-bit words (arrays wrap around silently)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _as_words(values: ArrayLike | SupportsInt) -> UInt64Array:
    """Integers of any kind as 64-bit words, at least one-dimensional; negative ones wrap around."""
    if isinstance(values, int):
        return np.array([values & _MASK], dtype=np.uint64)
    array = np.atleast_1d(np.asarray(values))
    if array.size == 0:
        return array.astype(np.uint64)
    if array.dtype.kind not in "iub":
        raise ValueError(f"Keys must be integers (got an array of {array.dtype})")
    return array.astype(np.uint64)


def combine_keys(*parts: ArrayLike | SupportsInt) -> UInt64Array:
    r"""Mixes several integers into one key each, e.g. an epoch and the indices of triples.

    Args:
        *parts: Integer arrays or single integers, broadcast against each other. Their order counts.

    Returns:
        An array of unsigned 64-bit keys, of shape ``[n]`` (``[1]`` for integers alone).
    """
    if not parts:
        raise ValueError("'combine_keys' needs at least one integer or array (got none)")
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mix_words(mix_words(key + GOLDEN_WORD) + _as_words(part))
    return key


def label_keys(labels: Sequence[str]) -> UInt64Array:
    r"""Gives every label a key: the first 8 bytes of BLAKE2b over its UTF-8 bytes.

    Equal labels have equal keys on every machine and in every session.
    """
    digests = b"".join(
        hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for label in labels
    )
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _words(keys: ArrayLike, columns: int, seed: int, stream: int) -> UInt64Array:
    """Independent 64-bit words of shape [n, columns]; a column does not depend on their number."""
    if columns < 0:
        raise ValueError(f"'columns' must not be negative (got {columns})")
    start = combine_keys(stream, seed, _as_words(keys))
    steps = np.arange(1, columns + 1, dtype=np.uint64) * GOLDEN_WORD
    return mix_words(start[:, None] + steps[None, :])


def _unit_interval(words: UInt64Array) -> NDArray[np.float64]:
    # The upper 53 bits: every value is a multiple of 2^-53, hence strictly below one.
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seeded_uniform(keys: ArrayLike, columns: int, seed: int) -> NDArray[np.float64]:
    r"""Draws from the uniform distribution on :math:`[0, 1)`.

    Args:
        keys: Integer keys of shape ``[n]``, see :func:`label_keys` and :func:`combine_keys`.
        columns: The number of draws for each key.
        seed: The seed, any integer.

    Returns:
        An array of shape ``[n, columns]``. Column ``j`` is the same for every ``columns > j``.
    """
    return _unit_interval(_words(keys, columns, seed, _UNIFORM))


def seeded_normal(keys: ArrayLike, columns: int, seed: int) -> NDArray[np.float64]:
    r"""Draws from the standard normal distribution (Box-Muller).

    Args:
        keys: Integer keys of shape ``[n]``.
        columns: The number of draws for each key.
        seed: The seed, any integer.

    Returns:
        An array of shape ``[n, columns]``. Column ``j`` is the same for every ``columns > j``.
    """
    uniform = _unit_interval(_words(keys, 2 * ((columns + 1) // 2), seed, _NORMAL))
    radius = np.sqrt(-2.0 * np.log1p(-uniform[:, 0::2]))  # 1 - u lies in (0, 1]
    angle = 2.0 * np.pi * uniform[:, 1::2]
    normal = np.empty_like(uniform)
    normal[:, 0::2] = radius * np.cos(angle)
    normal[:, 1::2] = radius * np.sin(angle)
    return normal[:, :columns]


def seeded_integers(keys: ArrayLike, columns: int, high: int, seed: int) -> NDArray[np.int64]:
    r"""Draws integers from :math:`\{0, \dots, \text{high} - 1\}`, uniform to within high / 2^64.

    Args:
        keys: Integer keys of shape ``[n]``.
        columns: The number of draws for each key.
        high: The number of values, from 1 to :math:`2^{63} - 1`.
        seed: The seed, any integer.

    Returns:
        An array of shape ``[n, columns]``. Column ``j`` is the same for every ``columns > j``.
    """
    if not 1 <= high < 1 << 63:
        raise ValueError(f"'high' must lie between 1 and 2^63 - 1 (got {high})")
    words = _words(keys, columns, seed, _INTEGERS)
    # The upper half of the 128-bit product words * high, by halves of 32 bits.
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    high_1, high_0 = np.uint64(high >> 32), np.uint64(high & 0xFFFFFFFF)
    word_1, word_0 = words >> half, words & low
    middle = word_1 * high_0 + ((word_0 * high_0) >> half)
    carry = (word_0 * high_1 + (middle & low)) >> half
    return (word_1 * high_1 + (middle >> half) + carry).astype(np.int64)
