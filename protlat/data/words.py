"""Words of sequences (k-mers) as integer codes: what the search for near neighbours compares."""

from __future__ import annotations

import numpy as np

# Proteins: 20^5 words against some hundred residues, so that chance gives well under 1 %.
# Documents: shorter words than these recur in any two books of a language, and a long book holds a tenth of all codes.
PROTEIN_K, DOCUMENT_K = 5, 32
# Share of a protein's words in another one from which they are called near: 70 % identity, 0.7^5.
NEAR_CONTAINMENT = 0.17
CODE_BITS = 25
# Fewer words than these say nothing.
MIN_WORDS = 5


def codes_of(values: np.ndarray, k: int) -> np.ndarray:
    """A 25-bit code of the k-mer at every place, shape (T - k + 1,), uint32; exact for five residues, hashed otherwise."""
    n_kmers = max(len(values) - k + 1, 0)
    if k == PROTEIN_K:
        # Residues have ids below 31; <mask> falls on <cls>, which never stands here. Two, four, five residues.
        two = (values[:-1] & np.uint8(31)).astype(np.uint32)
        two <<= np.uint32(5)
        two |= values[1:] & np.uint8(31)
        five = two[:n_kmers] << np.uint32(15)
        five |= two[2 : 2 + n_kmers] << np.uint32(5)
        five |= values[4:] & np.uint8(31)
        return five
    codes = np.zeros(n_kmers, dtype=np.uint32)
    for shift in range(k):
        codes *= np.uint32(0x9E3779B1)
        codes += values[shift : shift + n_kmers].astype(np.uint32) + np.uint32(1)
        codes ^= codes >> np.uint32(15)
    return codes >> np.uint32(32 - CODE_BITS)


def distinct(values: np.ndarray) -> np.ndarray:
    """Different values, sorted; sorts in place. Faster here than numpy.unique, which hashes."""
    values.sort()
    return values[np.concatenate((np.ones(min(len(values), 1), dtype=bool), values[1:] != values[:-1]))]


def is_chosen(codes: np.ndarray, bits: int) -> np.ndarray:
    """One word in 2^bits, by its code, shape of `codes`, bool."""
    if not bits:
        return np.ones(len(codes), dtype=bool)
    return codes * np.uint32(0x9E3779B1) < np.uint32(1 << (32 - bits))
