"""From id arrays to the packed batch that a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from protlat.alphabet import Alphabet
from protlat.ops.segments import Segments


@dataclass(frozen=True)
class PackedBatch:
    """Sequences end to end.

    Attributes
    ----------
    tokens : torch.Tensor, shape (T,), int64
    segments : Segments
        Where each sequence lies.
    """

    tokens: torch.Tensor
    segments: Segments

    def to(self, device: torch.device | str) -> PackedBatch:
        if torch.device(device) == self.tokens.device:
            return self
        segments = Segments(self.segments.lengths, device, self.segments.offsets)
        return PackedBatch(self.tokens.to(device, non_blocking=True), segments)


def with_specials(ids: np.ndarray, alphabet: Alphabet, start: bool = True, end: bool = True) -> np.ndarray:
    """``<cls>`` before and ``<eos>`` after a sequence, shape (L + start + end,), the dtype of `ids`.

    A crop passes ``end=False`` unless it reaches the true end, so that ``<eos>`` keeps its meaning; ``<cls>`` is always
    the first token, since the ``cls`` vector is read from it.
    """
    parts = [np.array([alphabet.cls_id] * start, ids.dtype), ids, np.array([alphabet.eos_id] * end, ids.dtype)]
    return np.concatenate(parts)


def pack_ids(sequences: Sequence[np.ndarray], offsets: Sequence[int] | None = None) -> PackedBatch:
    """Lay id arrays end to end as one batch on the CPU; `offsets` as in `Segments`."""
    tokens = torch.from_numpy(np.concatenate(sequences).astype(np.int64))
    return PackedBatch(tokens, Segments([len(s) for s in sequences], offsets=offsets))


def batches_by_tokens(lengths: Iterable[int], budget: int) -> Iterator[list[int]]:
    """Group indices, in the order given, into batches of at most `budget` tokens.

    A sequence longer than the budget is a batch of its own.
    """
    batch: list[int] = []
    used = 0
    for index, length in enumerate(lengths):
        if batch and used + length > budget:
            yield batch
            batch, used = [], 0
        batch.append(index)
        used += length
    if batch:
        yield batch
