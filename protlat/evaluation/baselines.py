"""Features that need no model: which residues a protein is made of, which words they form, what stands around a residue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.evaluation.probes import Features
from protlat.inference.feature_cache import Ragged
from protlat.tasks.data import LabelledSplit

# Residues of like volume and dipole: Shen et al. 2007, Predicting protein-protein interactions based only on sequences
# information, table 1 (the conjoint triad).
_GROUPS = ("AGV", "ILFP", "YMTS", "HNQW", "RK", "DE", "C")
_AROUND = 15
"""Residues in a window, its centre included."""
_N = len(STANDARD_RESIDUES)
_OTHER = _N


def _codes() -> np.ndarray:
    """Number from 0 to 19 of each token, 20 for what is no standard residue, shape (V,)."""
    table = np.full(len(PROTEIN), _OTHER, dtype=np.int64)
    for number, residue in enumerate(STANDARD_RESIDUES):
        table[PROTEIN.ids[residue]] = number
    return table


_CODE = _codes()
_GROUP = np.array(
    [next(i for i, group in enumerate(_GROUPS) if r in group) for r in STANDARD_RESIDUES] + [len(_GROUPS)]
)


def composition(split: LabelledSplit) -> np.ndarray:
    """Share of each of the 20 residues and the logarithm of the length, shape (N, 21), float32."""
    rows = np.zeros((len(split), _N + 1), np.float32)
    for row, ids in zip(rows, split.ids, strict=True):
        row[:_N] = _shares(_CODE[ids], _N + 1)[:_N]
        row[_N] = np.log(max(len(ids), 1))
    return rows


def words(split: LabelledSplit) -> np.ndarray:
    """`composition`, shares of the 400 pairs of neighbours, and of triples over seven groups of residues, (N, 764), float32."""
    n_groups = len(_GROUPS)
    pairs = np.zeros((len(split), _N * _N), np.float32)
    triples = np.zeros((len(split), n_groups**3), np.float32)
    for row, ids in enumerate(split.ids):
        codes = _CODE[ids]
        first, second = codes[:-1], codes[1:]
        known = (first < _N) & (second < _N)
        pairs[row] = _shares((first * _N + second)[known], _N * _N)
        groups = _GROUP[codes]
        a, b, c = groups[:-2], groups[1:-1], groups[2:]
        known = (a < n_groups) & (b < n_groups) & (c < n_groups)
        triples[row] = _shares(((a * n_groups + b) * n_groups + c)[known], n_groups**3)
    # Shares of rare words are tiny and skewed: their square roots are closer to what a linear model can use.
    return np.concatenate([composition(split), np.sqrt(pairs), np.sqrt(triples)], axis=1)


def _shares(codes: np.ndarray, size: int) -> np.ndarray:
    counts = np.bincount(codes, minlength=size).astype(np.float32)
    shares: np.ndarray = counts / max(float(counts.sum()), 1.0)
    return shares


def residue_composition(split: LabelledSplit) -> Ragged:
    """For every residue: itself, one-hot, and the shares of residues in a window of 15 around it, (T, 41), float16."""

    def rows(codes: np.ndarray) -> np.ndarray:
        own = np.eye(_N + 1, dtype=np.float32)[codes]
        half = _AROUND // 2
        sums = np.cumsum(np.concatenate([np.zeros((1, _N), np.float32), own[:, :_N]]), axis=0)
        places = np.arange(len(codes))
        low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, len(codes))
        around = (sums[high] - sums[low]) / (high - low)[:, None]
        return np.concatenate([own, around], axis=1)

    return _ragged(split, rows)


def residue_window(split: LabelledSplit) -> Ragged:
    """For every residue: each of the 15 around it, one-hot, beyond the ends too, (T, 330), float16."""

    def rows(codes: np.ndarray) -> np.ndarray:
        half = _AROUND // 2
        padded = np.concatenate([np.full(half, _OTHER + 1), codes, np.full(half, _OTHER + 1)])
        window = np.lib.stride_tricks.sliding_window_view(padded, _AROUND)
        return np.eye(_N + 2, dtype=np.float16)[window].reshape(len(codes), -1)

    return _ragged(split, rows)


def _ragged(split: LabelledSplit, rows: Callable[[np.ndarray], np.ndarray]) -> Ragged:
    offsets = np.cumsum([0, *(len(ids) for ids in split.ids)], dtype=np.int64)
    parts = [rows(_CODE[ids]).astype(np.float16) for ids in split.ids]
    return Ragged(np.concatenate(parts), offsets)


def plain_features(kind: str, split: LabelledSplit, per_residue: bool) -> Features:
    """Features of a baseline.

    Parameters
    ----------
    kind : str
        "composition" or "kmer".
    split : LabelledSplit
    per_residue : bool
        One row per residue, else one per sequence.
    """
    if kind not in ("composition", "kmer"):
        raise ValueError(f"features {kind!r} are unknown; known: composition, kmer")
    if per_residue:
        return residue_composition(split) if kind == "composition" else residue_window(split)
    return composition(split) if kind == "composition" else words(split)


def one_hot_rows(sequences: Sequence[np.ndarray]) -> Ragged:
    """Each residue as 21 numbers, the last for what is no standard residue, (T, 21), float16."""
    offsets = np.cumsum([0, *(len(ids) for ids in sequences)], dtype=np.int64)
    return Ragged(np.eye(_N + 1, dtype=np.float16)[_CODE[np.concatenate(sequences)]], offsets)
