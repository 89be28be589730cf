"""Settings of `protlat finetune` that only tasks of pairs have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protlat.config import Config
from protlat.models.contact import PairInput
from protlat.models.contact_head import ContactHeadConfig

PairBaseline = Literal["one_hot", "convolution"]


class PairConfig(Config):
    """Head and crops of a task of pairs; given under `pair`, such as ``--set pair.crop=96``."""

    head: ContactHeadConfig = ContactHeadConfig()
    """Sizes of the head."""
    reads: PairInput = "vectors"
    """vectors: those of the frozen encoder; one_hot: residues only, so that the encoder plays no part."""
    crop: int = Field(64, ge=8)
    """Residues to a side of a crop of the map."""
    crops: int = Field(4, ge=1)
    """Crops of each chain in a batch."""
    chains_per_batch: int = Field(2, ge=1)
    """Chains in a batch."""
    baselines: tuple[PairBaseline, ...] = ()
    """Heads trained alike and reported beside: one_hot input; a convolution in place of the linear attention. Each takes as long
    as the head itself."""
