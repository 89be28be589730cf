"""Schedules and parameter groups."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from protlat.errors import ConfigError
from protlat.nn.product_key import ProductKeyMemory
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


def test_values_of_a_product_key_memory_have_a_rate_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), ProductKeyMemory(8, 2, 4, 2, 4))
    optimizer = make_optimizer(model, OptimConfig(lr=1e-3, product_key_lr=1e-2))
    [group] = [group for group in optimizer.param_groups if "lr_ratio" in group]
    assert group["lr_ratio"] == pytest.approx(10)
    assert [id(p) for p in group["params"]] == [id(model[1].values.weight)]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    together = make_optimizer(model, OptimConfig(lr=1e-3))
    assert all("lr_ratio" not in group for group in together.param_groups)


def test_a_rate_for_values_that_are_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no product_key feed-forward"):
        make_optimizer(nn.Linear(2, 2), OptimConfig(product_key_lr=1e-2))
