"""What can be scored of the next token by counting: frequencies, bigrams and trigrams of what stands before it."""

from __future__ import annotations

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.batch import TrainingBatch
from protlat.data.dataset import SequenceSource
from protlat.data.next_token import NextTokenDataset
from protlat.data.packing import with_specials

_STRENGTH = 20.0
"""Pseudo-counts that a back-off distribution is worth."""
_CHUNK_TOKENS = 4_000_000


class NextTokenFloors:
    """Three predictors of the next token, fitted by counting.

    With c counts in the training split, x the next token, b the one before it, a the one before that (``<cls>`` where
    the sequence begins), and k = 20:

    - frequencies: P1(x) = (c(x) + 1) / (N + V), over the V tokens that are not special and ``<eos>``;
    - bigram: P2(x | b) = (c(b, x) + k P1(x)) / (c(b) + k);
    - trigram: P3(x | a, b) = (c(a, b, x) + k P2(x | b)) / (c(a, b) + k).

    Parameters
    ----------
    source : SequenceSource
        The training split.
    alphabet : Alphabet
        At most `protlat.training.floors.MAX_ALPHABET` tokens.
    max_tokens : int
        Tokens to count; when the split has more, every n-th sequence is read.
    """

    def __init__(self, source: SequenceSource, alphabet: Alphabet, max_tokens: int) -> None:
        self._alphabet = alphabet
        self._possible = np.ones(len(alphabet), dtype=bool)
        self._possible[list(alphabet.special_ids)] = False
        self._possible[alphabet.eos_id] = True
        counts = self._count(source, max_tokens)
        self.n_counted = int(counts.sum())
        self._unigram, self._bigram, self._trigram = self._probabilities(counts)
        self._best = [np.asarray(p.argmax(-1)) for p in (self._unigram, self._bigram, self._trigram)]

    def _count(self, source: SequenceSource, max_tokens: int) -> np.ndarray:
        """Counts by (two before, one before, token), shape (V, V, V), int64."""
        size = len(self._alphabet)
        lengths = np.asarray(source.lengths, dtype=np.int64)
        stride = max(1, -(-int(lengths.sum()) // max_tokens))
        counts = np.zeros(size**3, dtype=np.int64)
        held: list[np.ndarray] = []
        n_held = 0
        for index in range(0, len(source), stride):
            ids = with_specials(source.tokens(index)[: int(lengths[index])], self._alphabet).astype(np.int64)
            before = np.concatenate([ids[:1], ids[:-2]])
            held.append((before * size + ids[:-1]) * size + ids[1:])
            n_held += len(ids)
            if n_held >= _CHUNK_TOKENS or index + stride >= len(source):
                cells, n = np.unique(np.concatenate(held), return_counts=True)
                counts[cells] += n
                held, n_held = [], 0
        cube: np.ndarray = counts.reshape(size, size, size)
        cube[:, :, ~self._possible] = 0
        return cube

    def _probabilities(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """P1 (V,), P2 (V, V) and P3 (V, V, V), the predicted token last."""
        single = counts.sum((0, 1)).astype(np.float64)
        p1 = np.where(self._possible, (single + 1) / (single.sum() + self._possible.sum()), 0.0)
        pair = counts.sum(0).astype(np.float64)
        p2 = (pair + _STRENGTH * p1) / (pair.sum(1, keepdims=True) + _STRENGTH)
        p3 = np.empty(counts.shape, dtype=np.float32)
        for before in range(len(counts)):
            here = counts[before].astype(np.float64)
            p3[before] = (here + _STRENGTH * p2) / (here.sum(1, keepdims=True) + _STRENGTH)
        return p1, p2, p3

    def score(self, batch: TrainingBatch, dataset: NextTokenDataset) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Score the positions of a batch of `dataset`.

        Where the batch goes on from another (its segments have offsets), the token before it is known here too.

        Returns
        -------
        dict
            ``frequencies``, ``bigram`` and ``trigram``: negative log-likelihood in nats, shape (M,), and whether the
            likeliest token is the true one, shape (M,).
        """
        last, targets = batch.tokens.numpy(), batch.targets.numpy()
        before = np.concatenate([[self._alphabet.cls_id], last[:-1]])
        lengths = batch.segments.lengths
        firsts = np.cumsum([0, *lengths[:-1]])
        offsets = batch.segments.offsets or (0,) * len(lengths)
        for first, index, start in zip(firsts, batch.indices, offsets, strict=True):
            before[first] = dataset.ids(int(index), start - 1, start)[0] if start else self._alphabet.cls_id
        contexts: list[tuple[str, np.ndarray, tuple[np.ndarray, ...]]] = [
            ("frequencies", self._unigram, ()),
            ("bigram", self._bigram, (last,)),
            ("trigram", self._trigram, (before, last)),
        ]
        answers = {}
        for (name, table, context), best in zip(contexts, self._best, strict=True):
            chosen = table[(*context, targets)].astype(np.float64)
            answers[name] = (-np.log(np.maximum(chosen, 1e-30)), best[context] == targets)
        return answers
