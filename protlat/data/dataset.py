"""Sequences of a shard split as a masked model reads them: <cls> residues <eos>, in parts where longer than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch

from protlat.alphabet import Alphabet
from protlat.data.batch import TrainingBatch
from protlat.data.masking import Masker
from protlat.data.packing import pack_ids, with_specials
from protlat.data.pieces import Pieces, cut_into_pieces
from protlat.data.random_streams import Purpose, stream


class SequenceSource(Protocol):
    """What a dataset needs of a shard reader (`protlat.data.shards.ShardReader`)."""

    @property
    def lengths(self) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def tokens(self, index: int) -> np.ndarray: ...
    def id(self, index: int) -> str: ...


class MaskedDataset:
    """Makes masked batches from the sequences of one split.

    Crops and masks are a pure function of (seed, epoch, index): they do not depend on rank, thread or order.

    Parameters
    ----------
    source : SequenceSource
    alphabet : Alphabet
    masker : Masker
    max_length : int
        Most tokens of a sequence with its specials, at least 3.
    seed : int
    long : "crop" or "pieces"
        What is longer is cropped at random, elsewhere each epoch, or read as consecutive pieces, all of them: then the
        items of the dataset are pieces. ``<cls>`` begins every piece, ``<eos>`` ends the last one.
    """

    def __init__(
        self,
        source: SequenceSource,
        alphabet: Alphabet,
        masker: Masker,
        max_length: int,
        seed: int,
        long: Literal["crop", "pieces"] = "crop",
    ) -> None:
        if max_length < 3:
            raise ValueError(f"max_length must be at least 3 (<cls>, a residue, <eos>), got {max_length}")
        self.source, self.alphabet, self.masker = source, alphabet, masker
        self.max_length, self.seed = max_length, seed
        # <cls> apart, since every part of a sequence has its own: residues and <eos>.
        bodies = np.asarray(source.lengths, dtype=np.int64) + 1
        self._pieces: Pieces | None = cut_into_pieces(bodies, max_length - 1) if long == "pieces" else None
        self.lengths: np.ndarray = 1 + (
            np.minimum(bodies, max_length - 1) if self._pieces is None else self._pieces.lengths
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def n_cropped(self) -> int:
        """Sequences of which an epoch reads a part only."""
        return 0 if self._pieces is not None else int((np.asarray(self.source.lengths) + 2 > self.max_length).sum())

    def sequence(self, index: int, epoch: int) -> np.ndarray:
        """Ids of one item with its specials, shape (`lengths[index]`,).

        ``<cls>`` always comes first; ``<eos>`` follows only where the item reaches the end of the sequence.
        """
        # A part is a window over the residues and <eos>.
        size = int(self.lengths[index]) - 1
        if self._pieces is not None:
            owner, start = int(self._pieces.owners[index]), int(self._pieces.starts[index])
        else:
            owner, start = index, self._crop_start(index, epoch, size)
        n_residues = int(self.source.lengths[owner])
        residues = self.source.tokens(owner)[start : min(start + size, n_residues)]
        return with_specials(residues, self.alphabet, end=start + size > n_residues)

    def _crop_start(self, index: int, epoch: int, size: int) -> int:
        spare = int(self.source.lengths[index]) + 1 - size
        return int(stream(self.seed, Purpose.CROP, epoch, index).integers(spare, endpoint=True)) if spare else 0

    def batch(self, indices: Sequence[int] | np.ndarray, epoch: int) -> TrainingBatch:
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
        return TrainingBatch(
            packed.tokens,
            packed.segments,
            torch.from_numpy(at.astype(np.int64)),
            torch.from_numpy(targets),
            rows,
            self._owners(np.asarray(indices, dtype=np.int64)),
            epoch,
        )

    def _owners(self, items: np.ndarray) -> np.ndarray:
        return items if self._pieces is None else self._pieces.owners[items]

    def _mask_stream(self, index: int, epoch: int) -> np.random.Generator:
        return stream(self.seed, Purpose.MASK, epoch, int(index))
