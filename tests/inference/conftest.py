"""A small random model for everything that only needs one that works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.models import MaskedLM, ModelConfig


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("models") / "toy"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(folder)
    return folder
