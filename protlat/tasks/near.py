"""Near neighbours among labelled sequences, by the share of five-residue words that two of them have in common.

The measure is that of `protlat prep`'s leak report: a share c of shared words suggests an identity of c^(1/5), and from a
share of 0.17 on (about 70 % identity) two sequences are called near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protlat.data.words import CODE_BITS, MIN_WORDS, NEAR_CONTAINMENT, PROTEIN_K, codes_of, distinct, is_chosen

# Pairs of sequences that have one word in common, looked at in one go: 240 MB.
_MAX_PAIRS = 30_000_000
# Words compared at once; of larger sets a part of the words, chosen by their code, stands for all.
_MAX_WORDS = 8_000_000
_REACH = 30
# Multiplications of one comparison, at some nanoseconds each; more queries than fit are sampled.
_MAX_PRODUCTS = 1_000_000_000
_CHUNK_CELLS = 20_000_000


@dataclass(frozen=True)
class Words:
    """Distinct words of sequences.

    Attributes
    ----------
    owners : numpy.ndarray, shape (n,), int64
        Row of the sequence, ascending.
    codes : numpy.ndarray, shape (n,), int64
        Ascending within a sequence.
    n_words : numpy.ndarray, shape (N,), int64
        Distinct words of each sequence.
    """

    owners: np.ndarray
    codes: np.ndarray
    n_words: np.ndarray


def words_of(sequences: Sequence[np.ndarray], bits: int = 0) -> Words:
    """Distinct five-residue words of each sequence; one in 2^bits of them, chosen by code."""
    n = len(sequences)
    if not n:
        return Words(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=n)
    flat = np.concatenate(sequences)
    if len(flat) < PROTEIN_K:
        return Words(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(n, np.int64))
    codes = codes_of(flat, PROTEIN_K).astype(np.int64)
    owners = np.repeat(np.arange(n), lengths)
    # A word is whole where its first and its last residue belong to one sequence.
    whole = owners[: len(codes)] == owners[PROTEIN_K - 1 :]
    if bits:
        whole &= is_chosen(codes.astype(np.uint32), bits)
    keys = distinct(owners[: len(codes)][whole] << CODE_BITS | codes[whole])
    found = keys >> CODE_BITS
    return Words(found, keys & ((1 << CODE_BITS) - 1), np.bincount(found, minlength=n))


@dataclass(frozen=True)
class Nearest:
    """The nearest of some sequences to each of others.

    Attributes
    ----------
    rows : numpy.ndarray, shape (Q,), int64
        Which of the others were compared.
    share : numpy.ndarray, shape (Q,), float64
        Largest share of its words that stand in one sequence; nan for sequences of fewer than five words.
    nearest : numpy.ndarray, shape (Q,), int64
        That sequence.
    """

    rows: np.ndarray
    share: np.ndarray
    nearest: np.ndarray

    @property
    def identity(self) -> np.ndarray:
        """Identity that the share suggests, shape (Q,)."""
        return np.asarray(self.share ** (1 / PROTEIN_K))

    @property
    def is_near(self) -> np.ndarray:
        return self.share >= NEAR_CONTAINMENT


def nearest(among: Sequence[np.ndarray], queries: Sequence[np.ndarray]) -> Nearest:
    """For each query the sequence that holds most of its words.

    Parameters
    ----------
    among, queries : sequence of numpy.ndarray, shape (L,), uint8
        Tokens of the protein alphabet.

    Notes
    -----
    Exact. Words that stand in over half of `among` are stored by the sequences that lack them, so that sets of variants
    of one protein cost no more than others. Where the work would still pass a bound, evenly spaced queries are compared.
    """
    from scipy.sparse import csr_matrix

    n_among, n_queries = len(among), len(queries)
    asked = words_of(queries)
    columns, asked_columns = np.unique(asked.codes, return_inverse=True)
    held = words_of(among)
    place = np.minimum(np.searchsorted(columns, held.codes), max(len(columns) - 1, 0))
    known = columns[place] == held.codes if len(columns) else np.zeros(len(place), dtype=bool)
    rows, places = held.owners[known], place[known]
    n_holding = np.bincount(places, minlength=len(columns))
    is_common = n_holding > n_among / 2
    rows, places, signs = _with_complements(rows, places, is_common, n_among)
    table = csr_matrix((signs, (places, rows)), shape=(len(columns), n_among), dtype=np.int32)

    starts = np.concatenate(([0], np.cumsum(asked.n_words)))
    wanted = csr_matrix(
        (np.ones(len(asked_columns), dtype=np.int32), asked_columns, starts), shape=(n_queries, len(columns))
    )
    work = wanted @ np.diff(table.indptr)
    chosen = np.arange(n_queries)
    if work.sum() > _MAX_PRODUCTS:
        chosen = np.unique(np.linspace(0, n_queries - 1, int(n_queries * _MAX_PRODUCTS / work.sum()) + 1).astype(int))
    base = wanted @ is_common.astype(np.int64)
    share = np.full(len(chosen), np.nan)
    best_row = np.zeros(len(chosen), dtype=np.int64)
    step = max(_CHUNK_CELLS // max(n_among, 1), 1)
    for first in range(0, len(chosen), step):
        part = chosen[first : first + step]
        product = (wanted[part] @ table).tocsr()
        for index, query in enumerate(part.tolist()):
            if asked.n_words[query] < MIN_WORDS:
                continue
            row, more = _best(product, index, n_among)
            share[first + index] = (base[query] + more) / asked.n_words[query]
            best_row[first + index] = row
    return Nearest(chosen, share, best_row)


def _with_complements(
    rows: np.ndarray, places: np.ndarray, is_common: np.ndarray, n_rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of rare words (+1), and of common ones those rows that lack them (-1)."""
    in_common = is_common[places]
    number = np.cumsum(is_common) - 1
    lacking = np.ones((int(is_common.sum()), n_rows), dtype=bool)
    lacking[number[places[in_common]], rows[in_common]] = False
    lack_place, lack_row = np.nonzero(lacking)
    signs = np.ones(int((~in_common).sum()) + len(lack_row), dtype=np.int32)
    signs[len(signs) - len(lack_row) :] = -1
    return (
        np.concatenate((rows[~in_common], lack_row)),
        np.concatenate((places[~in_common], np.flatnonzero(is_common)[lack_place])),
        signs,
    )


def _best(product: Any, index: int, n_columns: int) -> tuple[int, int]:
    """Column and value of the largest entry of a row of a sparse matrix; entries not stored are zero."""
    start, end = product.indptr[index], product.indptr[index + 1]
    columns, values = product.indices[start:end], product.data[start:end]
    if len(values):
        top = int(values.argmax())
        if values[top] > 0 or len(values) == n_columns:
            return int(columns[top]), int(values[top])
    stored = np.zeros(n_columns, dtype=bool)
    stored[columns] = True
    return int(np.argmin(stored)), 0


def groups(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """Groups of sequences that are near, directly or through others.

    Parameters
    ----------
    sequences : sequence of numpy.ndarray, shape (L,), uint8

    Returns
    -------
    numpy.ndarray, shape (N,), int64
        Number of each sequence's group. Sequences of fewer than five words stand alone.

    Notes
    -----
    Two are near when the one with fewer words has 17 % of them in common with the other. Of the sequences that hold one
    word, each is compared with the next thirty; larger families hang together through these.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(sequences)
    n_residues = sum(map(len, sequences))
    found = words_of(sequences, bits=max((n_residues // _MAX_WORDS).bit_length(), 0))
    order = np.argsort(found.codes, kind="stable")
    codes, owners = found.codes[order], found.owners[order]
    pairs: list[np.ndarray] = []
    n_pairs = 0
    for reach in range(1, min(_REACH, max(len(codes) - 1, 0)) + 1):
        same = np.flatnonzero(codes[reach:] == codes[:-reach])
        if not len(same) or (n_pairs + len(same) > _MAX_PAIRS and pairs):
            break
        pairs.append(owners[same] * n + owners[same + reach])
        n_pairs += len(same)
    if not pairs:
        return np.arange(n)
    keys, shared = np.unique(np.concatenate(pairs), return_counts=True)
    left, right = keys // n, keys % n
    fewer = np.minimum(found.n_words[left], found.n_words[right])
    near = (shared >= NEAR_CONTAINMENT * fewer) & (fewer >= MIN_WORDS)
    graph = coo_matrix((np.ones(int(near.sum()), dtype=np.int8), (left[near], right[near])), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
