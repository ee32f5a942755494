"""Residues modulo primes: integers by what is left of them, which tells polynomials apart.

Two different polynomials of low degree have the same value at a random point of a field of p elements with a
probability of at most degree / p (Schwartz, JACM 1980; Zippel, 1979). Here a point is an integer modulo each of
`PRIMES` primes of 31 bits that are drawn at random, so that products of residues fit 64 bits, and sums of products
with weights are exact in float64, where they are fast.
"""

from __future__ import annotations

import hashlib

import numpy as np

PRIMES = 4
TERMS = 4096
"""Products of a residue and a weight below 2**9 that float64 adds exactly."""
_MASK = (1 << 64) - 1
_FEW = 16
_30, _27, _31 = (np.uint64(places) for places in (30, 27, 31))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def is_prime(number: int) -> bool:
    """Whether an odd number below 2**32 is prime (Miller and Rabin, with the bases of Jaeschke 1993)."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 7, 61):
        power = pow(base, odd, number)
        if power in (1, number - 1) or base % number == 0:
            continue
        if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True


def draw_primes(rng: np.random.Generator) -> tuple[int, ...]:
    """`PRIMES` different primes from 2**30 to 2**31."""
    found: set[int] = set()
    while len(found) < PRIMES:
        number = int(rng.integers(1 << 30, 1 << 31)) | 1
        if is_prime(number):
            found.add(number)
    return tuple(sorted(found))


def mixed(words: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words that looks random (the finaliser of SplitMix64: Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return words ^ (words >> _31)


def residues(integers: np.ndarray, primes: tuple[int, ...]) -> np.ndarray:
    """uint64 (..., PRIMES) of int64."""
    return np.stack([integers % prime for prime in primes], axis=-1).astype(np.uint64)


_SALTS = np.array([(0x9E3779B97F4A7C15 * (lane + 1)) & _MASK for lane in range(PRIMES)], np.uint64)


def member_words(members: np.ndarray) -> np.ndarray:
    """What `hashed` adds up of each member, residues (..., PRIMES): uint64 of the same shape, a random word for each
    lane of a hash."""
    first = members[..., 0] | members[..., 1] << np.uint64(32)
    second = members[..., 2] | members[..., 3] << np.uint64(32)
    return mixed(first[..., None] + mixed(second[..., None] + _SALTS))


def hashed(members: np.ndarray, kept: np.ndarray | None, keys: np.ndarray) -> np.ndarray:
    """A random function of sets: uint64 (..., PRIMES) of residues (..., set, PRIMES), in any order.

    Parameters
    ----------
    members : uint64
        Below 2**31.
    kept : bool or None
        Which of the set count; None for all.
    keys : uint64 (..., PRIMES)
        Choose the function.
    """
    words = member_words(members)
    if kept is not None:
        words = np.where(kept[..., None], words, np.uint64(0))
    count = words.shape[-2]
    if count <= _FEW:  # numpy adds short axes up one number after the other
        total = sum((words[..., place, :] for place in range(1, count)), start=words[..., 0, :])
    else:
        total = words.sum(axis=-2, dtype=np.uint64)
    return mixed(total ^ keys)


def digest(*arrays: np.ndarray) -> bytes:
    """128 bits that are the same for the same contents only, as far as anybody can tell (BLAKE2b)."""
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(np.ascontiguousarray(array).data)
    return made.digest()
