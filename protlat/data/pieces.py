"""Consecutive pieces of long sequences, and pieces that go on from each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Pieces(NamedTuple):
    """Sequences cut into consecutive pieces.

    Attributes
    ----------
    owners : numpy.ndarray, shape (N,), int64
        Sequence of each piece.
    starts : numpy.ndarray, shape (N,), int64
        First token of each piece in its sequence.
    lengths : numpy.ndarray, shape (N,), int64
    """

    owners: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Spans(NamedTuple):
    """Pieces of sequences that form one batch.

    Attributes
    ----------
    indices, starts, lengths : numpy.ndarray, shape (S,), int64
        Sequence, first token in it, number of tokens.
    carried : numpy.ndarray, shape (S,), int64, or None
        Lane whose state each piece goes on from, -1 where it begins anew; None: nothing is carried over.
    last : numpy.ndarray, shape (lanes,), int64, or None
        The piece that stands last in each lane.
    """

    indices: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    carried: np.ndarray | None = None
    last: np.ndarray | None = None


def cut_into_pieces(lengths: np.ndarray, size: int) -> Pieces:
    """Every sequence in pieces of `size` tokens, its last one shorter.

    Parameters
    ----------
    lengths : numpy.ndarray, shape (N,), int64
        Each at least 1.
    size : int
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    counts = -(-lengths // size)
    owners = np.repeat(np.arange(len(lengths)), counts)
    firsts = np.cumsum(counts) - counts
    starts = (np.arange(len(owners)) - firsts[owners]) * size
    return Pieces(owners, starts, np.minimum(lengths[owners] - starts, size))
