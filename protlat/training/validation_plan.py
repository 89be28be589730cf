"""How the validation split is read: every sequence whole, long ones in chains of batches that go on from each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from protlat.data.batch import TrainingBatch
from protlat.data.batching import cut_by_tokens
from protlat.data.dataset import MaskedDataset, SequenceSource
from protlat.data.masking import Masker, MaskingConfig
from protlat.data.next_token import NextTokenDataset
from protlat.data.packing import batches_by_tokens
from protlat.data.pieces import Spans
from protlat.data.random_streams import Purpose, stream
from protlat.data.shards import ShardReader

Picks = np.ndarray | Spans
Chain = list[Picks]
_FIRST_LANE = np.zeros(1, dtype=np.int64)


class ValidationPlan:
    """Chains of batches that cover a split once, in an order fixed by the seed.

    Short sequences are packed up to `tokens_per_batch`, a chain of one batch each. A longer one is

    - masked models, or causal ones that pass no state: one pass of any length up to `longest`, pieces of that beyond;
    - causal models with state passing: a chain of pieces of `tokens_per_batch`, each going on from the one before.

    Parameters
    ----------
    reader : ShardReader
    masking : MaskingConfig or None
        None: next tokens.
    seed : int
    tokens_per_batch, longest : int
    carries : bool
    """

    def __init__(
        self,
        reader: ShardReader,
        masking: MaskingConfig | None,
        seed: int,
        tokens_per_batch: int,
        longest: int,
        carries: bool,
    ) -> None:
        source: SequenceSource = reader
        alphabet = reader.alphabet
        self.dataset: MaskedDataset | NextTokenDataset
        if masking is None:
            size = int(source.lengths.max()) + 1 if carries else longest
            self.dataset = NextTokenDataset(source, alphabet, size, seed, "pieces")
        else:
            self.dataset = MaskedDataset(source, alphabet, Masker(masking, alphabet), longest, seed, "pieces")
        whole = np.asarray(source.lengths) + (1 if masking is None else 2)
        self.n_cut = 0 if carries else int((whole > longest).sum())
        self._facts = {"tokens_per_batch": tokens_per_batch, "longest": longest, "carries": carries}
        order = stream(seed, Purpose.ORDER).permutation(len(self.dataset))
        lengths = self.dataset.lengths
        self.chains: list[Chain] = []
        for group in batches_by_tokens(lengths[order].tolist(), tokens_per_batch):
            items = order[group]
            if carries and int(lengths[items[0]]) > tokens_per_batch:
                self.chains.append(_chain(int(items[0]), int(lengths[items[0]]), tokens_per_batch))
            else:
                self.chains.append([items])

    def batch(self, picks: Picks) -> TrainingBatch:
        """One batch of a chain."""
        if isinstance(picks, Spans):
            return self.next_token.batch(picks, 0)
        return self.dataset.batch(picks, 0)

    @property
    def next_token(self) -> NextTokenDataset:
        """The dataset of a causal model."""
        assert isinstance(self.dataset, NextTokenDataset)
        return self.dataset

    def shortened(self, max_tokens: int) -> list[Chain]:
        """The first chains, of at most `max_tokens` in all but for one batch at least; the last may be cut short."""
        sizes = [[self._size(picks) for picks in chain] for chain in self.chains]
        bounds = cut_by_tokens(np.array([n for chain in sizes for n in chain]), max(max_tokens, *map(max, sizes)))
        left = int(bounds[1])
        chosen = []
        for chain in self.chains:
            if left > 0:
                chosen.append(chain[:left])
            left -= len(chain)
        return chosen

    def _size(self, picks: Picks) -> int:
        return int(picks.lengths.sum()) if isinstance(picks, Spans) else int(self.dataset.lengths[picks].sum())

    def key(self) -> dict[str, Any]:
        """What decides the plan, beside split, masks and seed."""
        return dict(self._facts)


def _chain(index: int, length: int, piece: int) -> Chain:
    """One document in pieces, lane 0."""
    chain: Chain = []
    for start in range(0, length, piece):
        begins = np.full(1, 0 if start else -1, dtype=np.int64)
        size = min(piece, length - start)
        chain.append(Spans(np.array([index]), np.array([start]), np.array([size]), begins, _FIRST_LANE))
    return chain
