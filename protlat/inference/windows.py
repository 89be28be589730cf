"""Overlapping windows over a long sequence, and how their vectors are blended into one."""

from __future__ import annotations

import numpy as np


def window_spans(length: int, window: int, overlap: int) -> list[tuple[int, int]]:
    """Half-open spans of `window` residues that cover a sequence; neighbours share at least `overlap` residues.

    The last window ends with the sequence and is as long as the others, so that no residue is seen with less context
    than the window gives.

    Examples
    --------
    >>> window_spans(10, 6, 2)
    [(0, 6), (4, 10)]
    >>> window_spans(11, 6, 2)
    [(0, 6), (4, 10), (5, 11)]
    >>> window_spans(5, 6, 2)
    [(0, 5)]
    """
    if length <= window:
        return [(0, length)]
    starts = list(range(0, length - window, window - overlap))
    return [(start, start + window) for start in (*starts, length - window)]


def blend_weights(size: int, overlap: int) -> np.ndarray:
    """Weight of each residue of a window before normalising, shape (size,), float32.

    A trapezoid: it rises over `overlap` residues, stays, and falls. Where two windows share `overlap` residues the
    normalised weights are a linear cross-fade, so blended vectors have no jump at a window's border.
    """
    place = np.arange(size)
    return np.minimum(np.minimum(place + 1, size - place), overlap + 1).astype(np.float32)
