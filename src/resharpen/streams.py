"""Counter-based randomness: every random number is a pure function of its name.

Philox4x32-10 (Salmon et al., 2011) turns a 64-bit key and a 128-bit counter into four 32-bit words. There is no
state to carry: draw 977 of a run can be computed without the 976 before it, in any process, in NumPy or in C++.

A **key** is a hash of the purpose of the numbers, a **counter** is their index. A setting is the name of the task and
the training length, independent of the model and the variant:

    hyperparameter `name` of draw i    key(seed, setting, "draw", name)    counter (block, i, 0, 0)
    initial matrix `name` of draw i    key(seed, setting, "init", name)    counter (block, i, 0, 0)
    minibatch of group i // 16         key(seed, setting, "batch")         counter (block, group, step, 0)
    validation set                     key(seed, task, "validation", use)  counter (block, 0, 0, 0)

    >>> words((0, 0), 4).tolist()  # the known answer of the Random123 library
    [1713891541, 3781805453, 3159862348, 2600524760]
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

Key = tuple[int, int]

GROUP = 16
"""Consecutive draws that see the same minibatches; the lanes of a vector in the native engine."""

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def key(seed: int, *parts: str) -> Key:
    """The 64-bit Philox key of a stream, from the run's seed and the stream's name."""
    name = "\x1f".join([str(seed), *parts])
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def philox(
    key: tuple[ArrayLike, ArrayLike], counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]
) -> NDArray[np.uint32]:
    """Ten rounds of Philox4x32 on counters and keys, which broadcast; the last axis of the result holds the four words
    of a block."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in np.broadcast_arrays(*counter))
    k0, k1 = (np.asarray(k, dtype=np.uint64) for k in key)
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def words(key: Key, n: int, index: ArrayLike = 0, step: ArrayLike = 0) -> NDArray[np.uint32]:
    """The first n 32-bit words of the streams (index, step), which broadcast; n is the last axis."""
    block = np.arange((n + 3) // 4)
    index, step = np.asarray(index)[..., None], np.asarray(step)[..., None]
    blocks = philox(key, (block, index, step, 0))
    return blocks.reshape(*blocks.shape[:-2], -1)[..., :n]


def uniforms(key: Key, n: int, index: ArrayLike = 0) -> NDArray[np.float64]:
    """n doubles in [0, 1) with 53 random bits each, from two words: (high * 2^32 + low) >> 11, times 2^-53."""
    pairs = words(key, 2 * n, index).astype(np.uint64)
    bits = (pairs[..., 0::2] << _SHIFT | pairs[..., 1::2]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def below(words: NDArray[np.uint32], bound: ArrayLike) -> NDArray[np.int64]:
    """Integers in [0, bound) as the high half of word * bound: no division, no rejection, bias under bound / 2^32."""
    return (words.astype(np.uint64) * np.asarray(bound, dtype=np.uint64) >> _SHIFT).astype(np.int64)
