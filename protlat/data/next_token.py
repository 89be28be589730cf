"""Batches for causal models: at every token, the one that follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from protlat.alphabet import Alphabet
from protlat.data.batch import TrainingBatch
from protlat.data.dataset import SequenceSource
from protlat.data.packing import pack_ids, with_specials
from protlat.data.pieces import Pieces, Spans, cut_into_pieces
from protlat.data.random_streams import Purpose, stream


class NextTokenDataset:
    """Makes next-token batches from the sequences of one split.

    A sequence of n residues (or bytes) is read as ``<cls>`` x1 ... xn, n + 1 tokens, each of which predicts the one
    behind it: x1 ... xn ``<eos>``. So the first residue is predicted from ``<cls>`` alone, and the end is predicted too.
    A part of a sequence is a window over these pairs: inside, it begins with the true token before its first target,
    not with ``<cls>``.

    Parameters
    ----------
    source : SequenceSource
    alphabet : Alphabet
    max_length : int
        Most tokens read of a sequence at a time.
    seed : int
    long : "crop" or "pieces"
        What is longer is read as one window an epoch, elsewhere each time, or as consecutive pieces, all of them.
    """

    def __init__(
        self,
        source: SequenceSource,
        alphabet: Alphabet,
        max_length: int,
        seed: int,
        long: Literal["crop", "pieces"] = "crop",
    ) -> None:
        self.source, self.alphabet, self.max_length, self.seed = source, alphabet, max_length, seed
        self.whole_lengths = np.asarray(source.lengths, dtype=np.int64) + 1
        """Tokens read of each sequence, were it read whole, shape (N,)."""
        self._pieces: Pieces | None = cut_into_pieces(self.whole_lengths, max_length) if long == "pieces" else None
        self.lengths: np.ndarray = (
            np.minimum(self.whole_lengths, max_length) if self._pieces is None else self._pieces.lengths
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def n_cropped(self) -> int:
        """Sequences of which an epoch reads a part only."""
        return 0 if self._pieces is not None else int((self.whole_lengths > self.max_length).sum())

    def ids(self, index: int, start: int, stop: int) -> np.ndarray:
        """Ids from `start` to before `stop` of ``<cls>`` x1 ... xn ``<eos>``."""
        n_residues = int(self.source.lengths[index])
        residues = self.source.tokens(index)[max(start - 1, 0) : min(stop - 1, n_residues)]
        return with_specials(residues, self.alphabet, start=start == 0, end=stop == n_residues + 2)

    def batch(self, picks: Sequence[int] | np.ndarray | Spans, epoch: int) -> TrainingBatch:
        """Read and pack some sequences, pieces of them (``long="pieces"``), or given spans."""
        if isinstance(picks, Spans):
            return self._pack(picks, epoch)
        items = np.asarray(picks, dtype=np.int64)
        if self._pieces is not None:
            return self._pack(Spans(*(column[items] for column in self._pieces)), epoch)
        starts = [self._crop_start(int(index), epoch) for index in items]
        return self._pack(Spans(items, np.array(starts, dtype=np.int64), self.lengths[items]), epoch)

    def _crop_start(self, index: int, epoch: int) -> int:
        spare = int(self.whole_lengths[index] - self.lengths[index])
        return int(stream(self.seed, Purpose.CROP, epoch, index).integers(spare, endpoint=True)) if spare else 0

    def _pack(self, spans: Spans, epoch: int) -> TrainingBatch:
        columns = (spans.indices.tolist(), spans.starts.tolist(), spans.lengths.tolist())
        windows = [self.ids(index, start, start + n + 1) for index, start, n in zip(*columns, strict=True)]
        offsets = None if spans.carried is None else columns[1]
        packed = pack_ids([window[:-1] for window in windows], offsets)
        targets = np.concatenate([window[1:] for window in windows]).astype(np.int64)
        rows = np.repeat(np.arange(len(windows)), spans.lengths)
        return TrainingBatch(
            packed.tokens,
            packed.segments,
            None,
            torch.from_numpy(targets),
            rows,
            spans.indices,
            epoch,
            spans.carried,
            spans.last,
        )
