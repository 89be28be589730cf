"""Random numbers that depend on what they are for, never on who draws them or when."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers decides; two purposes never share numbers."""

    ORDER = 0
    CROP = 1
    MASK = 2
    DROPOUT = 3
    SAMPLE = 4


def stream(seed: int, purpose: Purpose, epoch: int = 0, index: int = 0) -> np.random.Generator:
    """A generator that is a pure function of its arguments.

    Philox is counter-based: the seed and the purpose are its key, the epoch and the index the upper half of its
    counter, so that no two samples share numbers and none depends on rank, worker or order.

    Parameters
    ----------
    seed, epoch, index : int
        At least 0 and below 2**64.
    """
    key = np.array([seed, int(purpose)], dtype=np.uint64)
    counter = np.array([0, 0, index, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
