"""Sequences of a shard split as a model reads them: <cls> residues <eos>, cropped where longer than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from protlat.alphabet import Alphabet
from protlat.data.masking import Masker
from protlat.data.packing import PackedBatch, pack_ids, with_specials
from protlat.data.random_streams import Purpose, stream
from protlat.ops.segments import Segments


class SequenceSource(Protocol):
    """What a dataset needs of a shard reader (`protlat.data.shards.ShardReader`)."""

    @property
    def lengths(self) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def tokens(self, index: int) -> np.ndarray: ...
    def id(self, index: int) -> str: ...


@dataclass(frozen=True)
class MaskedBatch:
    """A packed batch and what is to be predicted in it.

    Attributes
    ----------
    tokens : torch.Tensor, shape (T,), int64
        Corrupted ids.
    segments : Segments
    at : torch.Tensor, shape (M,), int64
        Packed positions to predict.
    targets : torch.Tensor, shape (M,), int64
        True ids at those positions.
    rows : numpy.ndarray, shape (M,), int64
        Which of the batch's sequences each position lies in.
    indices : numpy.ndarray, shape (S,), int64
        Each sequence's index in its split.
    epoch : int
        Pass over the split that crops and masks belong to.
    """

    tokens: torch.Tensor
    segments: Segments
    at: torch.Tensor
    targets: torch.Tensor
    rows: np.ndarray
    indices: np.ndarray
    epoch: int

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_masked(self) -> int:
        return len(self.at)

    def to(self, device: torch.device | str) -> MaskedBatch:
        """The same batch on another device."""
        if torch.device(device) == self.tokens.device:
            return self
        packed = PackedBatch(self.tokens, self.segments).to(device)
        at, targets = (x.to(device, non_blocking=True) for x in (self.at, self.targets))
        return MaskedBatch(packed.tokens, packed.segments, at, targets, self.rows, self.indices, self.epoch)


class MaskedDataset:
    """Makes masked batches from the sequences of one split.

    Crops and masks are a pure function of (seed, epoch, index): they do not depend on rank, thread or order.

    Parameters
    ----------
    source : SequenceSource
    alphabet : Alphabet
    masker : Masker
    max_length : int
        Most tokens of a sequence with its specials, at least 3; what is longer is cropped at random, elsewhere each
        epoch.
    seed : int
    """

    def __init__(self, source: SequenceSource, alphabet: Alphabet, masker: Masker, max_length: int, seed: int) -> None:
        if max_length < 3:
            raise ValueError(f"max_length must be at least 3 (<cls>, a residue, <eos>), got {max_length}")
        self.source, self.alphabet, self.masker = source, alphabet, masker
        self.max_length, self.seed = max_length, seed
        self.lengths: np.ndarray = np.minimum(np.asarray(source.lengths, dtype=np.int64) + 2, max_length)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def n_cropped(self) -> int:
        """Sequences that do not fit whole."""
        return int((np.asarray(self.source.lengths) + 2 > self.max_length).sum())

    def sequence(self, index: int, epoch: int) -> np.ndarray:
        """Ids of one sequence with its specials, shape (`lengths[index]`,).

        ``<cls>`` always comes first; ``<eos>`` follows only when the crop reaches the end of the sequence.
        """
        n_residues = int(self.source.lengths[index])
        residues = self.source.tokens(index)[:n_residues]
        if n_residues + 2 <= self.max_length:
            return with_specials(residues, self.alphabet)
        # A crop is a window over the residues and <eos>, of one token less than the limit to leave room for <cls>.
        size = self.max_length - 1
        start = int(stream(self.seed, Purpose.CROP, epoch, index).integers(n_residues + 1 - size, endpoint=True))
        return with_specials(residues[start : start + size], self.alphabet, end=start + size > n_residues)

    def batch(self, indices: Sequence[int] | np.ndarray, epoch: int) -> MaskedBatch:
        """Read, crop, corrupt and pack some sequences.

        At least one position of the batch is to be predicted, unless no token in it is a residue.
        """
        originals = [self.sequence(int(index), epoch) for index in indices]
        masked = [self.masker(ids, self._mask_stream(i, epoch)) for ids, i in zip(originals, indices, strict=True)]
        if not any(len(item.positions) for item in masked):
            for row, (ids, index) in enumerate(zip(originals, indices, strict=True)):
                masked[row] = self.masker(ids, self._mask_stream(index, epoch), at_least=1)
                if len(masked[row].positions):
                    break
        starts = np.cumsum([0, *(len(ids) for ids in originals[:-1])])
        at = np.concatenate([item.positions + start for item, start in zip(masked, starts, strict=True)])
        rows = np.repeat(np.arange(len(masked)), [len(item.positions) for item in masked])
        packed = pack_ids([item.tokens for item in masked])
        targets = np.concatenate(originals).astype(np.int64)[at]
        return MaskedBatch(
            packed.tokens,
            packed.segments,
            torch.from_numpy(at.astype(np.int64)),
            torch.from_numpy(targets),
            rows,
            np.asarray(indices, dtype=np.int64),
            epoch,
        )

    def _mask_stream(self, index: int, epoch: int) -> np.random.Generator:
        return stream(self.seed, Purpose.MASK, epoch, int(index))
