"""Product-key memory against the definition that scores every value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protlat.errors import ConfigError
from protlat.models import ModelConfig
from protlat.nn.product_key import ProductKeyConfig, ProductKeyMemory
from protlat.ops import reference


@pytest.mark.parametrize(("n_keys", "top_k"), [(2, 1), (5, 5), (16, 7), (40, 32)])
def test_output_and_gradients_are_those_of_the_definition(rng: torch.Generator, n_keys: int, top_k: int) -> None:
    memory = ProductKeyMemory(12, 3, n_keys, top_k, 8).double()
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    x = torch.randn(30, 12, generator=rng, dtype=torch.float64).requires_grad_()
    queries = (x @ memory.project.weight.T).unflatten(1, (3, 2, 8))
    normed = nn.functional.layer_norm(queries, (8,), memory.norm.weight, memory.norm.bias)
    theirs = reference.product_key_memory(normed, memory.keys, memory.values.weight, top_k)
    ours = memory(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    weight = torch.randn(ours.shape, generator=rng, dtype=torch.float64)
    inputs = [x, *memory.parameters()]
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_start_dropout_and_chunks(rng: torch.Generator) -> None:
    torch.manual_seed(1)
    memory = ProductKeyConfig(n_heads=2, n_keys=32, top_k=8, key_dim=16, chunks=3).build(64, 0.5)
    assert isinstance(memory, ProductKeyMemory)
    memory.start_output(0.02)
    assert float(memory.values.weight.detach().norm(dim=1).mean()) == pytest.approx(1, rel=0.02)
    x = torch.randn(100, 64, generator=rng)
    with torch.no_grad():
        assert not torch.equal(memory(x), memory(x))
        memory.eval()
        torch.testing.assert_close(memory(x), memory.rows(x))
    x.requires_grad_()
    torch.testing.assert_close(memory(x), memory.rows(x))
    whole = torch.autograd.grad(memory.rows(x).square().sum(), memory.values.weight)[0]
    torch.testing.assert_close(torch.autograd.grad(memory(x).square().sum(), memory.values.weight)[0], whole)


def test_weights_are_counted_as_the_table_says() -> None:
    """At the reference's sizes about 9 million: 128^2 values, 4 heads, halves of 128, width 512."""
    memory = ProductKeyConfig().build(512, 0.0)
    n_values = sum(p.numel() for p in memory.parameters())
    assert n_values == 128**2 * 512 + 4 * 2 * 128 * 512 + 4 * 2 * 128 * 128 + 2 * 128


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"feed_forward": {"kind": "product_key", "n_keys": 8, "top_k": 9}}, "top_k 9 is more than n_keys 8"),
        (
            {"n_layers": 2, "feed_forward_by_layer": {2: {"kind": "gelu"}}},
            r"feed_forward_by_layer\.2: layers are numbered",
        ),
    ],
)
def test_refusals(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.parse(values)
