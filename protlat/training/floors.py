"""What can be scored without learning anything deep: residue frequencies and a trigram model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.batch import TrainingBatch
from protlat.data.dataset import SequenceSource
from protlat.data.masking import MaskingConfig
from protlat.data.packing import with_specials

_STRENGTH = 20.0
"""Pseudo-counts that a back-off distribution is worth."""
_CHUNK_TOKENS = 4_000_000
MAX_ALPHABET = 512
"""The trigram table has one cell for every three tokens: beyond this alphabet it does not fit in memory."""


class Floors:
    """Two predictors of a hidden token, fitted by counting.

    With c counts in the training split, x the hidden token, l and r its left and right neighbour (``<cls>`` and
    ``<eos>`` at the ends) and k = 20:

    - frequencies: P1(x) = (c(x) + 1) / (N + V), over the V tokens that are not special;
    - one neighbour: P2(x | l) = (c(l, x) + k P1(x)) / (c(l) + k), and P2(x | r) likewise;
    - back-off: Q(x | l, r) is proportional to P2(x | l) P2(x | r) / P1(x);
    - trigram: P3(x | l, r) = (c(l, x, r) + k Q(x | l, r)) / (c(l, r) + k).

    Both read the corrupted sequence, as the model does: a neighbour that is ``<mask>`` or beyond a crop is unknown,
    and P3 backs off to P2, or to P1 when both are. Where the position itself still shows a token y (kept or replaced
    at random), the predictors use it as the model can: P is multiplied by the chance of y given x, which is
    keep [x = y] + random / R for one of the R replacement tokens, and normalised.

    Parameters
    ----------
    source : SequenceSource
        The training split.
    alphabet : Alphabet
        At most 512 tokens.
    masking : MaskingConfig
        Rates of the corruption that is scored.
    max_tokens : int
        Residues to count; when the split has more, every n-th sequence is read.
    """

    def __init__(self, source: SequenceSource, alphabet: Alphabet, masking: MaskingConfig, max_tokens: int) -> None:
        if len(alphabet) > MAX_ALPHABET:
            raise ValueError(f"floors need an alphabet of at most {MAX_ALPHABET} tokens, got {len(alphabet)}")
        self._alphabet, self._masking = alphabet, masking
        self._plain = np.ones(len(alphabet), dtype=bool)
        self._plain[list(alphabet.special_ids)] = False
        self._replacement = np.zeros(len(alphabet), dtype=bool)
        self._replacement[list(alphabet.replacement_ids)] = True
        counts = self._count(source, max_tokens)
        self.n_counted = int(counts.sum())
        self._unigram, self._table = self._probabilities(counts)

    def _count(self, source: SequenceSource, max_tokens: int) -> np.ndarray:
        """Counts by (left, right, token), shape (V, V, V), int64."""
        size = len(self._alphabet)
        stride = max(1, -(-int(np.asarray(source.lengths).sum()) // max_tokens))
        counts = np.zeros(size**3, dtype=np.int64)
        for ids in self._chunks(source, stride):
            left, token, right = ids[:-2], ids[1:-1], ids[2:]
            cells = (left * size + right) * size + token
            counts += np.bincount(cells[self._plain[token]], minlength=size**3)
        return counts.reshape(size, size, size)

    def _chunks(self, source: SequenceSource, stride: int) -> Iterator[np.ndarray]:
        chunk: list[np.ndarray] = []
        n_tokens = 0
        for index in range(0, len(source), stride):
            ids = with_specials(source.tokens(index)[: int(source.lengths[index])], self._alphabet)
            chunk.append(ids)
            n_tokens += len(ids)
            if n_tokens >= _CHUNK_TOKENS:
                yield np.concatenate(chunk).astype(np.int64)
                chunk, n_tokens = [], 0
        if chunk:
            yield np.concatenate(chunk).astype(np.int64)

    def _probabilities(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P1, shape (V,), and P3 by (left, right, token), shape (V + 1, V + 1, V): the last row is "unknown"."""
        size = len(self._alphabet)
        single = counts.sum((0, 1)).astype(np.float64)
        p1 = np.where(self._plain, (single + 1) / (single.sum() + self._plain.sum()), 0.0)
        table = np.zeros((size + 1, size + 1, size), dtype=np.float32)
        sides = []
        for axis in (1, 0):
            pair = counts.sum(axis).astype(np.float64)
            sides.append((pair + _STRENGTH * p1) / (pair.sum(1, keepdims=True) + _STRENGTH))
        by_left, by_right = sides
        inverse = np.divide(1.0, p1, out=np.zeros_like(p1), where=p1 > 0)
        for left in range(size):
            back_off = by_left[left] * by_right * inverse
            back_off /= back_off.sum(1, keepdims=True)
            here = counts[left].astype(np.float64)
            table[left, :size] = (here + _STRENGTH * back_off) / (here.sum(1, keepdims=True) + _STRENGTH)
        table[:size, size], table[size, :size], table[size, size] = by_left, by_right, p1
        return p1, table

    def score(self, batch: TrainingBatch) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Score the positions of a batch.

        Returns
        -------
        dict
            ``frequencies`` and ``trigram``: negative log-likelihood in nats, shape (M,), and whether the likeliest
            token is the true one, shape (M,).
        """
        assert batch.at is not None
        tokens, at, targets = batch.tokens.numpy(), batch.at.numpy(), batch.targets.numpy()
        # A special other than <cls> and <eos> tells nothing: index V stands for an unknown neighbour.
        unknown = len(self._alphabet)
        readable = self._plain.copy()
        readable[[self._alphabet.cls_id, self._alphabet.eos_id]] = True
        context = np.where(readable[tokens], tokens, unknown)
        ends = np.cumsum(batch.segments.lengths)[batch.rows]
        inside = at + 1 < ends  # never false on the left: <cls> comes first and is not predicted
        right = np.where(inside, context[np.minimum(at + 1, len(tokens) - 1)], unknown)
        # The residue after <cls> may be a crop's first, but the model cannot tell that either.
        left = context[at - 1]
        seen = tokens[at]
        evidence = self._evidence(seen)
        answers = {}
        for name, prior in (("frequencies", self._unigram[None, :]), ("trigram", self._table[left, right])):
            posterior = prior * evidence
            posterior /= posterior.sum(1, keepdims=True)
            chosen = posterior[np.arange(len(at)), targets]
            answers[name] = (-np.log(np.maximum(chosen, 1e-30)), posterior.argmax(1) == targets)
        return answers

    def _evidence(self, seen: np.ndarray) -> np.ndarray:
        """Chance of the token that is shown given each true token, shape (M, V)."""
        size = len(self._alphabet)
        hidden = seen == self._alphabet.mask_id
        chance = np.zeros((len(seen), size))
        chance += (self._masking.random * self._replacement[seen] / self._replacement.sum())[:, None]
        chance[np.arange(len(seen)), seen] += self._masking.keep
        chance[hidden] = 1.0
        return chance
