"""Near neighbours across splits: which share of a sequence's k-mers stands in a single train sequence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.shards import SplitInfo, token_batches
from protlat.data.words import (
    CODE_BITS,
    DOCUMENT_K,
    MIN_WORDS,
    NEAR_CONTAINMENT,
    PROTEIN_K,
    codes_of,
    distinct,
    is_chosen,
)
from protlat.reporting import progress

NEAR_DOCUMENT = 0.5
_LEVELS = {PROTEIN_K: (0.7, 0.8, 0.9, 0.99), DOCUMENT_K: (0.25, 0.5, 0.75, 0.95)}
_QUERY_KMERS = 100_000
_TRAIN_TOKENS = 500_000_000
_CHUNK = 1 << 18  # stays in the processor's cache


def leak_report(output: Path, splits: dict[str, SplitInfo], alphabet: Alphabet, n_sample: int) -> dict[str, Any]:
    """Share of valid and test sequences with a near neighbour in train.

    Parameters
    ----------
    output : Path
        Shard folder; its shards are written, the manifest need not be.
    splits : dict
    alphabet : Alphabet
    n_sample : int
        Sequences compared per split, evenly spaced; 0 for no report.

    Returns
    -------
    dict
        Method, what was compared, and for each split ``share_near``, ``n_near``, ``n_compared``, ``n_too_short`` and a
        histogram: for proteins of the identity with the nearest train sequence that the shared k-mers suggest, for
        documents of the share itself.

    Notes
    -----
    One pass over train, at most 500 million tokens of it, about 10 ns a token; memory under 300 MB. A shared share c of the
    k-mers suggests the identity c^(1/k) (substitutions spread evenly).
    """
    if n_sample == 0 or "train" not in splits or len(splits) < 2:
        return {}
    k = PROTEIN_K if alphabet.name == "protein" else DOCUMENT_K
    words = {name: _sampled_words(output, splits[name], k, n_sample) for name in ("valid", "test") if name in splits}
    # Keep a fixed part of all words, chosen by their code, in queries and train alike: a power of two, for speed.
    bits = max((len(codes) // _QUERY_KMERS).bit_length() for codes, _, _ in words.values())
    near = NEAR_CONTAINMENT if k == PROTEIN_K else NEAR_DOCUMENT
    queries = {name: _Queries(*found, k, bits, near) for name, found in words.items()}
    n_train = 0
    with progress("compare splits", float(min(splits["train"].n_tokens, _TRAIN_TOKENS)), "tokens") as line:
        for values, offsets, lengths in token_batches(output, splits["train"]):
            if n_train >= _TRAIN_TOKENS:
                break
            _compare(list(queries.values()), values, offsets, offsets[:-1] + lengths - k, k, bits)
            n_train += int(lengths.sum())
            line.advance(int(lengths.sum()))
    whole = n_train >= splits["train"].n_tokens
    unit = "residue" if k == PROTEIN_K else "token"
    return {
        "method": f"at least {100 * near:.0f} % of its {k}-{unit} words in one train sequence"
        + (", about 70 % identity" if k == PROTEIN_K else ""),
        "k": k,
        "n_train_tokens_compared": n_train,
        "all_of_train_compared": whole,
        "splits": {name: query.facts() for name, query in queries.items()},
    }


def _sampled_words(output: Path, info: SplitInfo, k: int, n_sample: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Different words of evenly spaced sequences, the number of the sequence each stands in, and how many these are."""
    chosen = np.unique(np.linspace(0, info.n_sequences - 1, min(n_sample, info.n_sequences)).astype(np.int64))
    codes: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    first = 0
    for values, offsets, lengths in token_batches(output, info):
        for row in (chosen[(chosen >= first) & (chosen < first + len(lengths))] - first).tolist():
            unique = distinct(codes_of(values[offsets[row] : offsets[row] + lengths[row]], k))
            owners.append(np.full(len(unique), len(codes), dtype=np.int64))
            codes.append(unique)
        first += len(lengths)
    return np.concatenate(codes), np.concatenate(owners), len(codes)


def _compare(
    queries: list[_Queries], values: np.ndarray, offsets: np.ndarray, last_places: np.ndarray, k: int, bits: int
) -> None:
    """Take a batch of train rows into account for every split; `last_places` is the last whole word of each row."""
    found: list[list[np.ndarray]] = [[] for _ in queries]
    for start in range(0, len(values), _CHUNK):
        codes = codes_of(values[start : start + _CHUNK + k - 1], k)
        chosen = np.flatnonzero(is_chosen(codes, bits))
        codes = codes[chosen]
        for query, pairs in zip(queries, found, strict=True):
            hit = query.wanted[codes]
            place = chosen[hit] + start
            rows = np.searchsorted(offsets, place, side="right") - 1
            inside = place <= last_places[rows]
            pairs.append(rows[inside].astype(np.int64) << CODE_BITS | codes[hit][inside])
    for query, pairs in zip(queries, found, strict=True):
        query.add(distinct(np.concatenate(pairs)))


class _Queries:
    """Sampled sequences of one split and the nearest train sequence seen so far."""

    def __init__(self, codes: np.ndarray, owners: np.ndarray, n_sequences: int, k: int, bits: int, near: float) -> None:
        self.k, self.bits, self.near = k, bits, near
        kept = is_chosen(codes, bits)
        codes, owners = codes[kept], owners[kept]
        order = np.argsort(codes, kind="stable")
        self._codes, self._owners = codes[order], owners[order]
        self._n_words = np.bincount(self._owners, minlength=n_sequences)
        self._best = np.zeros(n_sequences)
        self.wanted = np.zeros(1 << CODE_BITS, dtype=bool)
        self.wanted[self._codes] = True

    def add(self, pairs: np.ndarray) -> None:
        """Count, for train rows and words given as ``row << 25 | code``, the words shared with each sequence."""
        rows, codes = pairs >> CODE_BITS, (pairs & ((1 << CODE_BITS) - 1)).astype(np.uint32)
        left = np.searchsorted(self._codes, codes, side="left")
        counts = np.searchsorted(self._codes, codes, side="right") - left
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        owners = self._owners[np.repeat(left, counts) + within]
        keys, shared = np.unique(np.repeat(rows, counts) * len(self._best) + owners, return_counts=True)
        owner = keys % len(self._best)
        np.maximum.at(self._best, owner, shared / self._n_words[owner])

    def facts(self) -> dict[str, Any]:
        """What the manifest keeps of the comparison."""
        enough = self._n_words >= MIN_WORDS
        best = self._best[enough]
        n_near = int(np.count_nonzero(best >= self.near))
        levels = _LEVELS[self.k]
        bounds = np.searchsorted(levels, best ** (1 / self.k) if self.k == PROTEIN_K else best, side="right")
        counts = np.bincount(bounds, minlength=len(levels) + 1).tolist()
        percent = [f"{100 * level:.0f}" for level in levels]
        between = [f"{low} to {high} %" for low, high in itertools.pairwise(percent)]
        labels = (f"below {percent[0]} %", *between, f"{percent[-1]} % and more")
        what = "nearest_identity_histogram" if self.k == PROTEIN_K else "nearest_share_histogram"
        return {
            "share_near": round(n_near / len(best), 4) if len(best) else None,
            "n_near": n_near,
            "n_compared": len(best),
            "n_too_short": int(np.count_nonzero(~enough)),
            "part_of_words": f"1/{1 << self.bits}",
            what: [[label, count] for label, count in zip(labels, counts, strict=True)],
        }
