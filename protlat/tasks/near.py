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
    Exact. Where the work would pass a bound, evenly spaced queries are compared.
    """
    asked = words_of(queries)
    columns, places = np.unique(asked.codes, return_inverse=True)
    wanted = _rows_by_word(asked.owners, places, len(queries), len(columns))
    table = _Table.of(*_in_columns(words_of(among), columns), len(columns), len(among))
    work = wanted @ table.n_stored
    chosen = np.arange(len(queries))
    if work.sum() > _MAX_PRODUCTS:
        n_chosen = max(int(len(queries) * _MAX_PRODUCTS / work.sum()), 1)
        chosen = np.unique(np.linspace(0, len(queries) - 1, n_chosen).astype(np.int64))
    base = wanted @ table.is_common.astype(np.int64)
    share = np.full(len(chosen), np.nan)
    best_row = np.zeros(len(chosen), dtype=np.int64)
    step = max(_CHUNK_CELLS // max(len(among), 1), 1)
    for first in range(0, len(chosen), step):
        part = chosen[first : first + step]
        product = (wanted[part] @ table.signs).tocsr()
        for index, query in enumerate(part.tolist()):
            if asked.n_words[query] < MIN_WORDS:
                continue
            row, more = _best(product, index, len(among))
            share[first + index] = (base[query] + more) / asked.n_words[query]
            best_row[first + index] = row
    return Nearest(chosen, share, best_row)


@dataclass(frozen=True)
class _Table:
    """Which sequences hold which words, stored so that sets of variants of one protein cost no more than others.

    Attributes
    ----------
    signs : scipy.sparse.csr_matrix, shape (W, N), int32
        1 where a sequence holds a rare word; -1 where it lacks a common one.
    is_common : numpy.ndarray, shape (W,), bool
        Words that stand in over half of the sequences.
    """

    signs: Any
    is_common: np.ndarray

    @property
    def n_stored(self) -> np.ndarray:
        return np.diff(self.signs.indptr)

    @staticmethod
    def of(rows: np.ndarray, places: np.ndarray, n_columns: int, n_rows: int) -> _Table:
        """Table of the words at `places` among all, each held by the sequence in `rows`."""
        from scipy.sparse import csr_matrix

        is_common = np.bincount(places, minlength=n_columns) > n_rows / 2
        in_common = is_common[places]
        lacking = np.ones((int(is_common.sum()), n_rows), dtype=bool)
        lacking[(np.cumsum(is_common) - 1)[places[in_common]], rows[in_common]] = False
        lack_place, lack_row = np.nonzero(lacking)
        signs = np.ones(int((~in_common).sum()) + len(lack_row), dtype=np.int32)
        signs[len(signs) - len(lack_row) :] = -1
        all_rows = np.concatenate((rows[~in_common], lack_row))
        all_places = np.concatenate((places[~in_common], np.flatnonzero(is_common)[lack_place]))
        return _Table(csr_matrix((signs, (all_places, all_rows)), shape=(n_columns, n_rows)), is_common)


def _in_columns(words: Words, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sequence and column of each word that is in `columns`, ascending."""
    # A table of all codes leaves few words to look up, which takes far longer.
    is_asked = np.zeros(1 << CODE_BITS, dtype=bool)
    is_asked[columns] = True
    known = is_asked[words.codes]
    return words.owners[known], np.searchsorted(columns, words.codes[known])


def _rows_by_word(rows: np.ndarray, places: np.ndarray, n_rows: int, n_columns: int) -> Any:
    """1 where a sequence holds a word, shape (N, W), sparse."""
    from scipy.sparse import csr_matrix

    return csr_matrix((np.ones(len(rows), dtype=np.int32), (rows, places)), shape=(n_rows, n_columns))


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
    Two are near when the one with fewer words has 17 % of them in common with the other. All pairs that share a word are
    looked at; where these are too many, each sequence that holds a word is compared with the next thirty that do, and
    families hang together through these.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = len(sequences)
    if not n:
        return np.zeros(0, dtype=np.int64)
    found = words_of(sequences, bits=(sum(map(len, sequences)) // _MAX_WORDS).bit_length())
    _, places, counts = np.unique(found.codes, return_inverse=True, return_counts=True)
    # Words of one sequence only connect nothing.
    recurs = counts > 1
    kept = recurs[places]
    rows, places, n_columns = found.owners[kept], (np.cumsum(recurs) - 1)[places[kept]], int(recurs.sum())
    table = _Table.of(rows, places, n_columns, n)
    held = _rows_by_word(rows, places, n, n_columns)
    is_cheap = (held @ table.n_stored).sum() <= _MAX_PRODUCTS
    left, right = _all_pairs(found, held, table, n) if is_cheap else _next_pairs(found, n)
    graph = coo_matrix((np.ones(len(left), dtype=np.int8), (left, right)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _are_near(shared: np.ndarray, fewer: np.ndarray) -> np.ndarray:
    return (shared >= NEAR_CONTAINMENT * fewer) & (fewer >= MIN_WORDS)


def _all_pairs(found: Words, held: Any, table: _Table, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of near sequences; of a sequence that is near most others by common words alone, enough to connect them."""
    base = held @ table.is_common.astype(np.int64)
    left: list[np.ndarray] = []
    right: list[np.ndarray] = []
    # Members of one set so far: sequences that are near most others need one link into it only.
    joined = np.zeros(n, dtype=bool)
    step = max(_CHUNK_CELLS // max(n, 1), 1)
    for first in range(0, n, step):
        rows = np.arange(first, min(first + step, n))
        product = (held[rows] @ table.signs).tocsr()
        plain = product.tocoo()
        own, other = rows[plain.row], plain.col.astype(np.int64)
        keep = (base[own] == 0) & (own != other)
        own, other, shared = own[keep], other[keep], plain.data[keep]
        near = _are_near(shared, np.minimum(found.n_words[own], found.n_words[other]))
        left.append(own[near])
        right.append(other[near])
        for index in np.flatnonzero(base[rows] > 0).tolist():
            row = first + index
            total = np.full(n, base[row])
            start, end = product.indptr[index], product.indptr[index + 1]
            total[product.indices[start:end]] += product.data[start:end]
            near_rows = np.flatnonzero(_are_near(total, np.minimum(found.n_words[row], found.n_words)))
            if not len(near_rows):
                continue
            linked = near_rows[~joined[near_rows]]
            if joined[near_rows].any() or not joined.any():
                linked = np.append(linked, near_rows[np.argmax(joined[near_rows])])
                joined[near_rows] = joined[row] = True
            left.append(np.full(len(linked), row))
            right.append(linked)
    return np.concatenate(left), np.concatenate(right)


def _next_pairs(found: Words, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Near pairs among sequences that follow each other in the list of those that hold a word."""
    order = np.argsort(found.codes, kind="stable")
    codes, owners = found.codes[order], found.owners[order]
    pairs: list[np.ndarray] = []
    n_pairs = 0
    for reach in range(1, min(_REACH, len(codes) - 1) + 1):
        same = np.flatnonzero(codes[reach:] == codes[:-reach])
        if not len(same) or (n_pairs + len(same) > _MAX_PAIRS and pairs):
            break
        pairs.append(owners[same] * n + owners[same + reach])
        n_pairs += len(same)
    keys, shared = np.unique(np.concatenate(pairs), return_counts=True)
    left, right = keys // n, keys % n
    near = _are_near(shared, np.minimum(found.n_words[left], found.n_words[right]))
    return left[near], right[near]
