"""Masked-residue corruption: which positions are hidden, and what stands there instead."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.alphabet import Alphabet
from protlat.config import Config


class MaskingConfig(Config):
    """How residues are chosen and corrupted for masked-residue modelling."""

    fraction: float = Field(0.15, gt=0, le=1)
    """Chance of each residue to be chosen for prediction."""
    mask: float = Field(0.8, ge=0, le=1)
    """Share of the chosen residues that is replaced by <mask>."""
    random: float = Field(0.1, ge=0, le=1)
    """Share of the chosen residues that is replaced by a residue drawn at random."""
    keep: float = Field(0.1, ge=0, le=1)
    """Share of the chosen residues that is left as it is, but still predicted."""

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = self.mask + self.random + self.keep
        if abs(total - 1) > 1e-6:
            raise ValueError(f"mask + random + keep must be 1, but are {total:g}")
        return self


class Masked(NamedTuple):
    """A corrupted sequence.

    Attributes
    ----------
    tokens : numpy.ndarray, shape (L,)
        Ids after corruption, the dtype of the input.
    positions : numpy.ndarray, shape (M,), int64
        Chosen positions, ascending; what stood there is the target.
    """

    tokens: np.ndarray
    positions: np.ndarray


class Masker:
    """Corrupts id arrays under one config and alphabet.

    Parameters
    ----------
    config : MaskingConfig
    alphabet : Alphabet
        Its special ids are never chosen; its replacement ids are what random replacement draws from.
    """

    def __init__(self, config: MaskingConfig, alphabet: Alphabet) -> None:
        self.config = config
        self._mask_id = alphabet.mask_id
        self._replacements = np.array(alphabet.replacement_ids, dtype=alphabet.dtype)
        self._maskable = np.ones(len(alphabet), dtype=bool)
        self._maskable[list(alphabet.special_ids)] = False

    def __call__(self, tokens: np.ndarray, rng: np.random.Generator, at_least: int = 0) -> Masked:
        """Corrupt one sequence; the input is not changed.

        Each residue is chosen with probability ``fraction``, independently. When fewer than `at_least` are chosen,
        those with the lowest random number are taken, as many as can be.

        Parameters
        ----------
        tokens : numpy.ndarray, shape (L,), uint8 or uint16
        rng : numpy.random.Generator
            The sample's own stream (see `protlat.data.random_streams`).
        at_least : int
            Smallest number of chosen positions, where the sequence has that many residues.

        Returns
        -------
        Masked
        """
        score = rng.random(len(tokens))
        score[~self._maskable[tokens]] = np.inf
        positions = np.flatnonzero(score < self.config.fraction)
        if len(positions) < at_least:
            lowest = np.argsort(score, kind="stable")[:at_least]
            positions = np.sort(lowest[np.isfinite(score[lowest])])
        fate = rng.random(len(positions))
        drawn = self._replacements[rng.integers(len(self._replacements), size=len(positions))]
        corrupted = tokens.copy()
        hidden = fate < self.config.mask
        replaced = ~hidden & (fate < self.config.mask + self.config.random)
        corrupted[positions[hidden]] = self._mask_id
        corrupted[positions[replaced]] = drawn[replaced]
        return Masked(corrupted, positions)
