"""Fixtures that every test may use."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def rng() -> torch.Generator:
    """A generator of its own, so that tests do not depend on each other's order."""
    return torch.Generator().manual_seed(20240229)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: threads cost more than they bring, and test processes would fight over the cores."""
    torch.set_num_threads(1)
