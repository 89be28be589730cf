"""Built-in linkage for machines without MMseqs2: MinHash signatures of 4-mers (datasketch), single linkage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from protlat.errors import ProtlatError

K = 4
N_PERMUTATIONS = 128
BAND_ROWS = 2
# Signatures take 512 bytes a sequence and are compared in memory.
MAX_SEQUENCES = 1_000_000
_GROUP_REACH = 10
_CHUNK_PAIRS = 50_000
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: spreads neighbouring codes (Knuth)


def kmer_hashes(tokens: np.ndarray, k: int) -> np.ndarray:
    """64-bit hash of every k-mer of a sequence, shape (max(L - k + 1, 0),), uint64."""
    n_kmers = len(tokens) - k + 1
    if n_kmers <= 0:
        return np.zeros(0, dtype=np.uint64)
    codes = np.zeros(n_kmers, dtype=np.uint64)
    for shift in range(k):
        codes = codes * np.uint64(1 << 8 if tokens.dtype == np.uint8 else 1 << 16) + tokens[shift : shift + n_kmers]
    mixed = codes * _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed * _MIX


def estimated_identity(jaccard: float, k: int = K) -> float:
    """Sequence identity at which two sequences of one length are expected to share this much of their k-mers."""
    return float((2 * jaccard / (1 + jaccard)) ** (1 / k))


def signatures(sequences: Iterator[np.ndarray], n_sequences: int) -> np.ndarray:
    """MinHash signatures, shape (N, `N_PERMUTATIONS`), uint32.

    Raises
    ------
    ProtlatError
        More sequences than fit in memory.
    """
    from datasketch import MinHash

    if n_sequences > MAX_SEQUENCES:
        raise ProtlatError(
            f"the built-in MinHash linkage holds at most {MAX_SEQUENCES:,} sequences, here are {n_sequences:,}: install MMseqs2 "
            "(Debian: apt install mmseqs2) or give --clusters"
        )
    found = np.zeros((n_sequences, N_PERMUTATIONS), dtype=np.uint32)
    # Drawing the permutations costs more than a signature: one MinHash is emptied and used again.
    sketch = MinHash(num_perm=N_PERMUTATIONS, seed=1, hashfunc=int)
    for row, tokens in enumerate(sequences):
        sketch.clear()
        hashes = np.unique(kmer_hashes(tokens, min(K, max(len(tokens), 1))) >> np.uint64(32))
        sketch.update_batch(hashes.tolist())
        found[row] = sketch.hashvalues.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    return found


def link(sketches: np.ndarray, similarity: float) -> np.ndarray:
    """Single-linkage components of sequences whose estimated Jaccard similarity reaches `similarity`.

    Candidates agree in a band of two hash values; large groups compare each member with those ten places on. Pairs
    far above the threshold are all found, pairs at the threshold almost all.

    Returns
    -------
    numpy.ndarray, shape (N,), int32
        Component of each sequence.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n_sequences = len(sketches)
    labels = np.arange(n_sequences, dtype=np.int32)
    for first in range(0, N_PERMUTATIONS, BAND_ROWS):
        band = sketches[:, first].astype(np.uint64) << np.uint64(32) | sketches[:, first + 1]
        order = np.argsort(band, kind="stable")
        values = band[order]
        left, right = [], []
        for reach in range(1, _GROUP_REACH + 1):
            near = np.flatnonzero(values[reach:] == values[:-reach]) if reach < n_sequences else np.zeros(0, np.int64)
            if not len(near):
                break
            a, b = order[near], order[near + reach]
            apart = labels[a] != labels[b]
            left.append(a[apart])
            right.append(b[apart])
        if not left:
            continue
        a, b = np.concatenate(left), np.concatenate(right)
        close = np.zeros(len(a), dtype=bool)
        for start in range(0, len(a), _CHUNK_PAIRS):
            part = slice(start, start + _CHUNK_PAIRS)
            close[part] = (sketches[a[part]] == sketches[b[part]]).mean(axis=1) >= similarity
        if not close.any():
            continue
        # A tree from every sequence to its component's label carries the links found so far.
        rows = np.concatenate((np.arange(n_sequences, dtype=np.int32), a[close].astype(np.int32)))
        columns = np.concatenate((_roots(labels), b[close].astype(np.int32)))
        graph = coo_matrix((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n_sequences, n_sequences))
        labels = connected_components(graph, directed=False)[1]
    return labels


def _roots(labels: np.ndarray) -> np.ndarray:
    """First member of each sequence's component, shape (N,), int32."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int32)
