"""Scores on the validation split, at positions that are the same in every run, beside the floors."""

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

from protlat.config import Config
from protlat.data.batch import TrainingBatch
from protlat.data.batching import Prefetcher
from protlat.data.masking import MaskingConfig
from protlat.data.shards import ShardReader
from protlat.files import write_json
from protlat.nn.state import RecurrentState
from protlat.training.carry import begin_state
from protlat.training.engine import Process
from protlat.training.floors import MAX_ALPHABET, Floors
from protlat.training.next_token_floors import NextTokenFloors
from protlat.training.scores import Tally
from protlat.training.validation_plan import ValidationPlan

log = logging.getLogger(__name__)
FLOORS_FILE = "floors.json"
_PREFETCH = 4


class EvaluationConfig(Config):
    """When and on how much of the validation split the model is scored."""

    every_steps: int = Field(500, ge=1)
    """Steps between two evaluations; one at the end of the run covers the whole split."""
    max_tokens: int = Field(200_000, ge=1)
    """Tokens that an evaluation during the run reads, always the same ones."""
    longest_pass: int = Field(65_536, ge=3)
    """Most tokens of one pass: a masked model reads longer documents in pieces; a causal one with state passing is not bound."""
    carry: bool = True
    """Causal models: score a document as one, the state passed on; false: in pieces of `longest_pass` that begin anew."""
    seed: int = Field(0, ge=0)
    """Fixes the masked positions; the same in every run, so that runs can be compared."""
    floors: bool = True
    """Score residue frequencies and a trigram model, fitted on the training split, at the same positions."""
    floor_tokens: int = Field(100_000_000, ge=1)
    """Residues that the floors are counted from at most."""


class Validator:
    """Scores a model on the validation split, every sequence whole.

    Parameters
    ----------
    reader : ShardReader
        The split.
    masking : MaskingConfig or None
        None: a causal model, whose next tokens are scored.
    config : EvaluationConfig
    tokens_per_batch : int
    longest : int
        Most tokens of one pass, also for models that cannot pass a state.
    carries : bool
        Whether the state is passed from piece to piece, so that a document of any length is read as one.
    """

    def __init__(
        self,
        reader: ShardReader,
        masking: MaskingConfig | None,
        config: EvaluationConfig,
        tokens_per_batch: int,
        longest: int,
        carries: bool = False,
    ) -> None:
        self.plan = ValidationPlan(reader, masking, config.seed, tokens_per_batch, longest, carries)
        self.reader, self.masking, self.config = reader, masking, config
        self.tags = list(reader.tags) or [""]
        self.tag_codes = np.asarray(reader.tag_codes, dtype=np.int64)
        self._short = self.plan.shortened(config.max_tokens)
        if self.plan.n_cut:
            log.info(
                "validation: %d sequences are longer than one pass of %d tokens and are scored in pieces that do not know "
                "of each other", self.plan.n_cut, longest,
            )  # fmt: skip

    def tally(self) -> Tally:
        """Sums to add scores to."""
        if self.reader.alphabet.name != "bytes":
            return Tally(self.tags)
        return Tally(self.tags, "byte" if self.masking is None else "masked_byte")

    def batches(self, whole: bool, rank: int = 0, world_size: int = 1) -> Iterator[TrainingBatch]:
        """Batches of one rank; those that go on from each other are neighbours."""
        for chain in (self.plan.chains if whole else self._short)[rank::world_size]:
            for picks in chain:
                yield self.plan.batch(picks)

    def _add(self, tally: Tally, batch: TrainingBatch, nll: np.ndarray, correct: np.ndarray) -> None:
        ends = None if batch.at is not None else batch.targets.cpu().numpy() == self.reader.alphabet.eos_id
        tally.add(self.tag_codes[batch.indices][batch.rows], nll, correct, ends)

    def score(self, engine: Any, process: Process, whole: bool) -> dict[str, Any]:
        """Scores of the model; every rank must call.

        Returns
        -------
        dict
            See `Tally.summary`, with ``n_tokens`` read and ``seconds`` taken.
        """
        start_s = time.perf_counter()
        tally = self.tally()
        n_tokens = 0
        chains = self.plan.chains if whole else self._short
        # Under ZeRO stage 3 every rank takes part in every forward pass, so all make the same number of them.
        world_size = process.world_size
        n_rounds = max(sum(len(chain) for chain in chains[rank::world_size]) for rank in range(world_size))
        engine.eval()
        batches = Prefetcher(lambda: self.batches(whole, process.rank, world_size), _PREFETCH)
        state: RecurrentState | None = None
        with torch.no_grad(), batches:
            for _ in range(n_rounds):
                batch = next(batches, None)
                if batch is None:
                    spare = self.plan.batch(chains[0][0])
                    self._predict(engine, spare.to(process.device), None)
                    continue
                nll, correct, state = self._predict(engine, batch.to(process.device), state)
                self._add(tally, batch, nll, correct)
                n_tokens += batch.n_tokens
        engine.train()
        tally.reduce(process.sum)
        total_tokens = int(process.sum([float(n_tokens)])[0])
        return {**tally.summary(), "n_tokens": total_tokens, "seconds": time.perf_counter() - start_s}

    @staticmethod
    def _predict(
        engine: Any, batch: TrainingBatch, before: RecurrentState | None
    ) -> tuple[np.ndarray, np.ndarray, RecurrentState | None]:
        state = None if batch.carried is None else begin_state(before, batch.carried, batch.tokens.device)
        logits = engine(batch.tokens, batch.segments, batch.at, state)
        nll = F.cross_entropy(logits, batch.targets, reduction="none")
        correct = (logits.argmax(1) == batch.targets).cpu().numpy()
        return nll.double().cpu().numpy(), correct, None if state is None else state.next()

    def floors(self, train: ShardReader, run: Path) -> dict[str, Any] | None:
        """Scores of the floors at the positions of `score`, from the run folder when they are there already.

        Returns
        -------
        dict or None
            ``short`` and ``whole`` (see `batches`), each with ``frequencies`` and ``trigram`` (causal: ``bigram`` too);
            None when switched off or when the alphabet is too large to count three tokens in a row.
        """
        config, alphabet = self.config, self.reader.alphabet
        if not config.floors:
            return None
        if len(alphabet) > MAX_ALPHABET:
            log.warning("no floors: an alphabet of %d tokens is too large for trigram counts", len(alphabet))
            return None
        key = {
            "train": train.fingerprint,
            "valid": self.reader.fingerprint,
            "masking": None if self.masking is None else self.masking.to_plain(),
            "evaluation": config.to_plain(),
            "plan": self.plan.key(),
        }
        path = run / FLOORS_FILE
        if path.is_file():
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if saved["key"] == key:
                return saved
        log.info("floors: counting tokens and trigrams of the training split")
        causal = NextTokenFloors(train, alphabet, config.floor_tokens) if self.masking is None else None
        masked = Floors(train, alphabet, self.masking, config.floor_tokens) if self.masking is not None else None
        counted = causal or masked
        assert counted is not None
        result: dict[str, Any] = {"key": key, "n_counted": counted.n_counted}
        for scope, whole in (("short", False), ("whole", True)):
            tallies: dict[str, Tally] = {}
            for batch in self.batches(whole):
                scores = causal.score(batch, self.plan.next_token) if causal is not None else masked.score(batch)  # type: ignore[union-attr]
                for name, (nll, correct) in scores.items():
                    self._add(tallies.setdefault(name, self.tally()), batch, nll, correct)
            result[scope] = {name: tally.summary() for name, tally in tallies.items()}
        write_json(path, result)
        return result
