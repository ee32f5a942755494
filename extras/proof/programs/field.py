"""Residues modulo random primes, by which polynomials are compared.

Two different polynomials of low degree have equal values at a random point of a field of p elements with a
probability of at most degree / p (Schwartz, JACM 1980; Zippel, 1979). Here a point is a residue modulo each of
`PRIMES` random primes of 31 bits. Products of two residues fit 64 bits. Sums of products with weights are exact in
float64, which numpy multiplies faster than integers.
"""

from __future__ import annotations

import hashlib

import numpy as np

PRIMES = 4
EXACT_TERMS = 4096
"""Number of products of a residue and a weight below 2**9 that float64 adds exactly."""
_MASK = (1 << 64) - 1
_SHORT_AXIS = 16
# SplitMix64's finaliser
_30, _27, _31 = (np.uint64(places) for places in (30, 27, 31))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def is_prime(number: int) -> bool:
    """Return True if an odd number below 2**32 is prime (Miller-Rabin test with the bases of Jaeschke, 1993)."""
    # number - 1 = odd * 2**twos
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
    """Draw `PRIMES` different primes from 2**30 to 2**31, in ascending order."""
    primes: set[int] = set()
    while len(primes) < PRIMES:
        number = int(rng.integers(1 << 30, 1 << 31)) | 1
        if is_prime(number):
            primes.add(number)
    return tuple(sorted(primes))


def moduli(primes: tuple[int, ...]) -> np.ndarray:
    """Return the primes as uint64 (PRIMES,), to reduce arrays of residues by."""
    return np.array(primes, np.uint64)


def mix_bits(words: np.ndarray) -> np.ndarray:
    """Map 64-bit words by a bijection that looks random: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return words ^ (words >> _31)


def residues(integers: np.ndarray, primes: tuple[int, ...]) -> np.ndarray:
    """Return residues, uint64 (..., PRIMES), of int64 (...)."""
    return np.stack([integers % prime for prime in primes], axis=-1).astype(np.uint64)


# A salt per lane makes the lanes of a hash independent. The factor is 2**64 divided by the golden ratio.
_SALTS = np.array([(0x9E3779B97F4A7C15 * (lane + 1)) & _MASK for lane in range(PRIMES)], np.uint64)


def member_hashes(members: np.ndarray) -> np.ndarray:
    """Return the words that `hash_sets` adds up: uint64 (..., PRIMES) of residues (..., PRIMES), one for each lane."""
    # Two words hold the four residues of 31 bits.
    first = members[..., 0] | members[..., 1] << np.uint64(32)
    second = members[..., 2] | members[..., 3] << np.uint64(32)
    return mix_bits(first[..., None] + mix_bits(second[..., None] + _SALTS))


def hash_sets(members: np.ndarray, mask: np.ndarray | None, keys: np.ndarray) -> np.ndarray:
    """Hash sets of residues; the order of members has no influence.

    Parameters
    ----------
    members : uint64 (..., set, PRIMES)
        Residues below 2**31.
    mask : bool (..., set) or None
        Members that count; None for all.
    keys : uint64 (..., PRIMES)
        Random words that choose the hash function.

    Returns
    -------
    uint64 (..., PRIMES)
    """
    words = member_hashes(members)
    if mask is not None:
        words = np.where(mask[..., None], words, np.uint64(0))
    count = words.shape[-2]
    if count <= _SHORT_AXIS:  # numpy reduces short axes one element at a time, which is slow
        total = sum((words[..., place, :] for place in range(1, count)), start=words[..., 0, :])
    else:
        total = words.sum(axis=-2, dtype=np.uint64)
    return mix_bits(total ^ keys)


def digest(*arrays: np.ndarray) -> bytes:
    """Return a cryptographic hash of arrays' contents (BLAKE2b, 128 bits)."""
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(np.ascontiguousarray(array).data)
    return state.digest()
