"""A masked-language score on held-out sequences, by source, beside floors that are counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from protlat.data.masking import MaskingConfig
from protlat.data.shards import ShardReader
from protlat.evaluation.bootstrap import Score, bootstrap_score
from protlat.models import MaskedLM
from protlat.reporting import progress
from protlat.training.evaluation import EvaluationConfig, Validator
from protlat.training.floors import MAX_ALPHABET, Floors

ALL = "all sources"


@dataclass
class _Sums:
    """Positions, nats and right answers by sequence."""

    n: np.ndarray
    nll: np.ndarray
    correct: np.ndarray

    @classmethod
    def zeros(cls, n_sequences: int) -> _Sums:
        return cls(*(np.zeros(n_sequences) for _ in range(3)))

    def add(self, sequences: np.ndarray, nll: np.ndarray, correct: np.ndarray) -> None:
        for into, values in ((self.n, np.ones(len(nll))), (self.nll, nll), (self.correct, correct)):
            np.add.at(into, sequences, values)


@dataclass
class HeldOut:
    """Masked-language scores.

    Attributes
    ----------
    scores : dict of str to dict of str to dict of str to Score
        By predictor (``model``, ``trigram``, ``frequencies``), source and metric (``accuracy``, ``perplexity``).
    n_sequences, n_positions : int
    n_counted : int
        Residues that the floors were counted from; 0 without floors.
    """

    scores: dict[str, dict[str, dict[str, Score]]] = field(default_factory=dict)
    n_sequences: int = 0
    n_positions: int = 0
    n_counted: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Values for JSON."""
        plain = {
            who: {tag: {name: score.to_plain() for name, score in found.items()} for tag, found in by_tag.items()}
            for who, by_tag in self.scores.items()
        }
        return {
            "scores": plain,
            "n_sequences": self.n_sequences,
            "n_positions": self.n_positions,
            "n_counted": self.n_counted,
        }


def score_heldout(
    model: MaskedLM,
    valid: ShardReader,
    train: ShardReader | None,
    masking: MaskingConfig,
    max_tokens: int,
    floor_tokens: int,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> HeldOut:
    """Score a model at masked positions of held-out sequences.

    Parameters
    ----------
    model : MaskedLM
        In evaluation mode, on its device.
    valid : ShardReader
        Held-out split; its tags are the sources.
    train : ShardReader or None
        What the floors are counted from; None: no floors.
    masking : MaskingConfig
    max_tokens : int
        Tokens to read, always the same ones.
    floor_tokens : int
    tokens_per_batch : int
    n_bootstrap, seed : int
        Intervals are over resampled sequences.
    """
    settings = EvaluationConfig(max_tokens=max_tokens, seed=seed)
    validator = Validator(valid, masking, settings, tokens_per_batch, settings.longest_pass)
    device = next(model.parameters()).device
    floors = None
    if train is not None and len(valid.alphabet) <= MAX_ALPHABET:
        floors = Floors(train, valid.alphabet, masking, floor_tokens)
    sums: dict[str, _Sums] = {}
    with torch.inference_mode(), progress("held-out", None, "positions") as line:
        for batch in validator.batches(whole=False):
            assert batch.at is not None
            sequences = np.asarray(batch.indices)[batch.rows]
            here = batch.to(device)
            logits = model(here.tokens, here.segments, here.at)
            nll = F.cross_entropy(logits, here.targets, reduction="none").double().cpu().numpy()
            correct = (logits.argmax(1) == here.targets).cpu().numpy()
            found = {"model": (nll, correct), **(floors.score(batch) if floors is not None else {})}
            for who, (loss, right) in found.items():
                sums.setdefault(who, _Sums.zeros(len(valid))).add(sequences, loss, right)
            line.advance(len(nll))
    codes = np.asarray(valid.tag_codes, dtype=np.int64)
    tags = list(valid.tags)
    result = HeldOut(n_counted=floors.n_counted if floors is not None else 0)
    for who in ("model", "trigram", "frequencies"):
        if who in sums:
            result.scores[who] = _by_tag(sums[who], codes, tags, n_bootstrap, seed)
    if "model" in sums:
        result.n_sequences = int((sums["model"].n > 0).sum())
        result.n_positions = int(sums["model"].n.sum())
    return result


def _by_tag(
    sums: _Sums, codes: np.ndarray, tags: list[str], n_bootstrap: int, seed: int
) -> dict[str, dict[str, Score]]:
    groups = {ALL: sums.n > 0}
    if len(tags) > 1:
        groups |= {tag: (codes == code) & (sums.n > 0) for code, tag in enumerate(tags)}
    return {tag: _scores(sums, rows, n_bootstrap, seed) for tag, rows in groups.items() if rows.any()}


def _scores(sums: _Sums, rows: np.ndarray, n_bootstrap: int, seed: int) -> dict[str, Score]:
    n, nll, correct = sums.n[rows], sums.nll[rows], sums.correct[rows]
    n_examples, n_labels = int(rows.sum()), int(n.sum())
    perplexity = math.exp(min(float(nll.sum() / n.sum()), 700.0))
    return {
        "accuracy": bootstrap_score(
            float(correct.sum() / n.sum()), lambda w: (w @ correct) / (w @ n), n_examples, n_labels, n_bootstrap, seed
        ),
        "perplexity": bootstrap_score(
            perplexity, lambda w: np.exp((w @ nll) / (w @ n)), n_examples, n_labels, n_bootstrap, seed
        ),
    }
