"""Schedules and parameter groups."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from protlat.training.optim import OptimConfig, ScheduleConfig, make_optimizer, parameter_groups


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd", "constant"])
def test_schedule_rises_then_falls_to_the_final_fraction(kind: str) -> None:
    schedule = ScheduleConfig.parse({"kind": kind, "warmup": 0.1, "decay": 0.3, "final": 0.05})
    factors = [schedule.factor(p / 1000) for p in range(1001)]
    assert factors[0] == 0
    assert factors[50] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(1)
    assert factors[-1] == pytest.approx(1 if kind == "constant" else 0.05)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(factors[100:]))
    assert max(abs(a - b) for a, b in itertools.pairwise(factors)) < 0.011
    if kind == "wsd":
        assert factors[690] == 1
        assert factors[850] == pytest.approx(1 - 0.95 / 2)
    if kind == "cosine":
        assert factors[550] == pytest.approx((1 + 0.05) / 2)


def test_no_warm_up() -> None:
    assert ScheduleConfig(warmup=0).factor(0) == 1
    assert ScheduleConfig(final=0).factor(1.5) == pytest.approx(0)


def test_only_matrices_outside_embeddings_decay() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.norm = nn.LayerNorm(4)
            self.inner = nn.Linear(4, 4)
            self.readout = nn.Linear(4, 5)
            self.readout.weight = self.embedding.weight

    model = Model()
    decayed, plain = parameter_groups(model, 0.01)
    assert [id(p) for p in decayed["params"]] == [id(model.inner.weight)]
    assert decayed["weight_decay"] == 0.01
    assert plain["weight_decay"] == 0
    assert len(plain["params"]) == 5
    optimizer = make_optimizer(model, OptimConfig(lr=0.5))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == (0.9, 0.98)
