"""From the logits of a step to the next token of every sequence."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.alphabet import Alphabet
from protlat.config import Config
from protlat.data.random_streams import Purpose, stream

_DRAWN_AT_ONCE = 256


class SamplingConfig(Config):
    """How the next token is chosen. In order: repetition penalty, temperature, top-k, top-p."""

    temperature: float = Field(1.0, ge=0)
    """Logits are divided by it; 0: always the likeliest token."""
    top_k: int | None = Field(None, ge=1)
    """Choose among the k likeliest tokens only; null: all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Choose among the fewest likeliest tokens whose probabilities reach p in sum; 1: all."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Logits of tokens that stand in the prompt or were generated are divided by it (multiplied where negative); 1: none."""

    @model_validator(mode="after")
    def _acts(self) -> Self:
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            raise ValueError(
                "temperature 0 always takes the likeliest token, so top_k and top_p cannot act; leave them out, or raise "
                "the temperature"
            )
        return self


class RandomNumbers:
    """Uniform numbers of one sequence: a function of the seed, its prompt and its copy number, of nothing else.

    Parameters
    ----------
    seed : int
    prompt : numpy.ndarray, shape (L,), int
    copy : int
        Number of the sequence among those of an equal prompt.
    """

    def __init__(self, seed: int, prompt: np.ndarray, copy: int) -> None:
        digest = hashlib.blake2b(prompt.astype(np.int64).tobytes(), digest_size=8).digest()
        self._generator = stream(seed, Purpose.SAMPLE, int.from_bytes(digest, "little"), copy)
        self._held: list[float] = []

    def next(self) -> float:
        """The next number in [0, 1)."""
        if not self._held:
            self._held = self._generator.random(_DRAWN_AT_ONCE)[::-1].tolist()
        return self._held.pop()


class Sampler:
    """Chooses tokens: residues (or bytes) and the end, never another special.

    Parameters
    ----------
    config : SamplingConfig
    alphabet : Alphabet
    device : torch.device
    """

    def __init__(self, config: SamplingConfig, alphabet: Alphabet, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.allowed = torch.tensor(sorted((*alphabet.replacement_ids, alphabet.eos_id)), device=device)
        self._filters = config.top_k is not None or config.top_p < 1

    def choose(self, logits: torch.Tensor, seen: torch.Tensor | None, numbers: list[float]) -> torch.Tensor:
        """Choose one token for every sequence.

        Parameters
        ----------
        logits : torch.Tensor, shape (S, V), float32
        seen : torch.Tensor, shape (S, V), bool, or None
            Tokens that stand in the sequence; needed with a repetition penalty.
        numbers : list of float
            One number in [0, 1) for every sequence.

        Returns
        -------
        torch.Tensor, shape (S,), int64
        """
        config = self.config
        if config.repetition_penalty != 1:
            assert seen is not None
            penalised = torch.where(logits > 0, logits / config.repetition_penalty, logits * config.repetition_penalty)
            logits = torch.where(seen, penalised, logits)
        logits = logits.index_select(1, self.allowed)
        if config.temperature == 0:
            return self.allowed[logits.argmax(1)]
        # In float64: a sum over 65,536 tokens in float32 can end below the number that was drawn.
        chances = torch.softmax(logits.double() / config.temperature, 1)
        if self._filters:
            chances = self._filtered(chances)
        heights = chances.cumsum(1)
        drawn = torch.tensor(numbers, dtype=torch.float64, device=logits.device)[:, None] * heights[:, -1:]
        # The first token whose height is above the number: one that has a chance of zero never is.
        chosen = torch.searchsorted(heights, drawn, right=True).squeeze(1).clamp_max(len(self.allowed) - 1)
        return self.allowed[chosen]

    def _filtered(self, chances: torch.Tensor) -> torch.Tensor:
        """Chances with those beyond top-k and top-p set to zero; both need the order, which is sorted once.

        References
        ----------
        Fan et al. 2018 (top-k); Holtzman et al. 2020, equation 2 (top-p, over what top-k has left).
        """
        ranked, order = torch.sort(chances, dim=1, descending=True, stable=True)
        if self.config.top_k is not None:
            ranked[:, self.config.top_k :] = 0
        if self.config.top_p < 1:
            ranked /= ranked.sum(1, keepdim=True)
            before = ranked.cumsum(1) - ranked
            ranked = torch.where(before < self.config.top_p, ranked, 0)
        return torch.zeros_like(chances).scatter_(1, order, ranked)
