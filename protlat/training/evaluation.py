"""Scores on the validation split, at masked positions that are the same in every run, beside the floors."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from protlat.alphabet import Alphabet
from protlat.config import Config
from protlat.data.batching import BatchPlan, Prefetcher
from protlat.data.dataset import MaskedBatch, MaskedDataset
from protlat.data.masking import Masker, MaskingConfig
from protlat.data.shards import ShardReader
from protlat.files import write_json
from protlat.training.engine import Process
from protlat.training.floors import MAX_ALPHABET, Floors
from protlat.training.scores import Tally

log = logging.getLogger(__name__)
FLOORS_FILE = "floors.json"
_PREFETCH = 4


class EvaluationConfig(Config):
    """When and on how much of the validation split the model is scored."""

    every_steps: int = Field(500, ge=1)
    """Steps between two evaluations; one at the end of the run covers the whole split."""
    max_tokens: int = Field(200_000, ge=1)
    """Tokens that an evaluation during the run reads, always the same ones."""
    seed: int = Field(0, ge=0)
    """Fixes the masked positions; the same in every run, so that runs can be compared."""
    floors: bool = True
    """Score residue frequencies and a trigram model, fitted on the training split, at the same positions."""
    floor_tokens: int = Field(100_000_000, ge=1)
    """Residues that the floors are counted from at most."""


class Validator:
    """Scores a model on the validation split.

    Parameters
    ----------
    reader : ShardReader
        The split.
    masking : MaskingConfig
    config : EvaluationConfig
    tokens_per_batch : int
    max_length : int
        Longest crop.
    """

    def __init__(
        self,
        reader: ShardReader,
        masking: MaskingConfig,
        config: EvaluationConfig,
        tokens_per_batch: int,
        max_length: int,
    ) -> None:
        masker = Masker(masking, reader.alphabet)
        self.dataset = MaskedDataset(reader, reader.alphabet, masker, max_length, config.seed)
        self.tags = list(reader.tags) or [""]
        self.tag_codes = np.asarray(reader.tag_codes, dtype=np.int64)
        self._batches = list(BatchPlan(self.dataset.lengths, tokens_per_batch, config.seed).once())
        ends = np.cumsum([int(self.dataset.lengths[batch].sum()) for batch in self._batches])
        self._n_short = max(1, int(np.searchsorted(ends, config.max_tokens, side="right")))

    def batches(self, whole: bool, rank: int = 0, world_size: int = 1) -> Iterator[MaskedBatch]:
        """Masked batches of one rank."""
        chosen = self._batches if whole else self._batches[: self._n_short]
        for indices in chosen[rank::world_size]:
            yield self.dataset.batch(indices, epoch=0)

    def codes(self, batch: MaskedBatch) -> np.ndarray:
        """Tag code of each predicted position, shape (M,)."""
        return self.tag_codes[batch.indices][batch.rows]

    def score(self, engine: Any, process: Process, whole: bool) -> dict[str, Any]:
        """Scores of the model; every rank must call.

        Returns
        -------
        dict
            See `Tally.summary`, with ``n_tokens`` read and ``seconds`` taken.
        """
        start_s = time.perf_counter()
        tally = Tally(self.tags)
        n_tokens = 0
        n_mine = len(self._batches if whole else self._batches[: self._n_short])
        # Under ZeRO stage 3 every rank takes part in every forward pass, so all make the same number of them.
        n_rounds = -(-n_mine // process.world_size)
        engine.eval()
        batches = Prefetcher(lambda: self.batches(whole, process.rank, process.world_size), _PREFETCH)
        with torch.no_grad(), batches:
            spare: MaskedBatch | None = None
            for _ in range(n_rounds):
                batch = next(batches, None)
                if batch is None:
                    spare = spare or self.dataset.batch(self._batches[0], epoch=0)
                    self._predict(engine, spare.to(process.device))
                    continue
                nll, correct = self._predict(engine, batch.to(process.device))
                tally.add(self.codes(batch), nll, correct)
                n_tokens += batch.n_tokens
        engine.train()
        tally.reduce(process.sum)
        total_tokens = int(process.sum([float(n_tokens)])[0])
        return {**tally.summary(), "n_tokens": total_tokens, "seconds": time.perf_counter() - start_s}

    @staticmethod
    def _predict(engine: Any, batch: MaskedBatch) -> tuple[np.ndarray, np.ndarray]:
        logits = engine(batch.tokens, batch.segments, batch.at)
        nll = F.cross_entropy(logits, batch.targets, reduction="none")
        return nll.double().cpu().numpy(), (logits.argmax(1) == batch.targets).cpu().numpy()

    def floors(
        self, train: ShardReader, alphabet: Alphabet, masking: MaskingConfig, config: EvaluationConfig, run: Path
    ) -> dict[str, Any] | None:
        """Scores of the floors at the positions of `score`, from the run folder when they are there already.

        Returns
        -------
        dict or None
            ``short`` and ``whole`` (see `batches`), each with ``frequencies`` and ``trigram``; None when switched off
            or when the alphabet is too large to count three tokens in a row.
        """
        if not config.floors:
            return None
        if len(alphabet) > MAX_ALPHABET:
            log.warning("no floors: an alphabet of %d tokens is too large for trigram counts", len(alphabet))
            return None
        key = {
            "train": train.fingerprint,
            "valid": self.dataset.source.fingerprint,  # type: ignore[attr-defined]
            "masking": masking.to_plain(),
            "evaluation": config.to_plain(),
            "n_short": self._n_short,
            "max_length": self.dataset.max_length,
        }
        path = run / FLOORS_FILE
        if path.is_file():
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if saved["key"] == key:
                return saved
        log.info("floors: counting residues and trigrams of the training split")
        predictors = Floors(train, alphabet, masking, config.floor_tokens)
        result: dict[str, Any] = {"key": key, "n_counted": predictors.n_counted}
        for scope, whole in (("short", False), ("whole", True)):
            tallies = {"frequencies": Tally(self.tags), "trigram": Tally(self.tags)}
            for batch in self.batches(whole):
                for name, (nll, correct) in predictors.score(batch).items():
                    tallies[name].add(self.codes(batch), nll, correct)
            result[scope] = {name: tally.summary() for name, tally in tallies.items()}
        write_json(path, result)
        return result
