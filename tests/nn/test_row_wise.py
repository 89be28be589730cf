"""Feed-forwards in chunks: the same numbers, gradients and dropout, from less memory."""

from __future__ import annotations

import pytest
import torch

from protlat.nn.feed_forward import GeluConfig, GluConfig, SwigluConfig
from protlat.nn.product_key import ProductKeyConfig
from protlat.nn.row_wise import RowWiseConfig

KINDS: dict[str, RowWiseConfig] = {
    "gelu": GeluConfig(),
    "glu": GluConfig(bias=False),
    "swiglu": SwigluConfig(),
    "product_key": ProductKeyConfig(n_heads=2, n_keys=16, top_k=8, key_dim=8),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("n_rows", [1, 2, 50])
@pytest.mark.parametrize("chunks", [2, 3, 64])
def test_chunks_change_nothing(rng: torch.Generator, name: str, n_rows: int, chunks: int) -> None:
    torch.manual_seed(0)
    layer = KINDS[name].build(16, 0.0).double()
    x = torch.randn(n_rows, 16, generator=rng, dtype=torch.float64).requires_grad_()
    weight = torch.randn(n_rows, 16, generator=rng, dtype=torch.float64)
    found = []
    for layer.chunks in (1, chunks):
        out = layer(x)
        found.append([out, *torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()])])
    with torch.no_grad():
        torch.testing.assert_close(layer(x), found[0][0], rtol=1e-12, atol=1e-12)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_dropout_is_replayed(rng: torch.Generator, name: str) -> None:
    """A slope along the gradient shows whether the backward pass drops what the forward pass dropped."""
    torch.manual_seed(0)
    layer = KINDS[name].model_copy(update={"chunks": 3}).build(16, 0.5).double()
    x = torch.randn(40, 16, generator=rng, dtype=torch.float64).requires_grad_()

    def loss(at: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return layer(at).sin().sum()

    [gradient] = torch.autograd.grad(loss(x), x)
    step = 1e-6
    with torch.no_grad():
        slope = (loss(x + step * gradient) - loss(x - step * gradient)) / (2 * step)
    torch.testing.assert_close(slope, gradient.square().sum(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", KINDS)
def test_chunks_keep_no_inner_tensors(rng: torch.Generator, name: str) -> None:
    torch.manual_seed(0)
    layer = KINDS[name].build(16, 0.1)
    x = torch.randn(256, 16, generator=rng).requires_grad_()
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    kept_bytes = []
    for layer.chunks in (1, 4):
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = layer(x)
        kept_bytes.append(sum(kept.values()))
        assert out.requires_grad
    # Nothing but the rows that came in.
    assert kept_bytes[1] <= x.untyped_storage().nbytes() + 64
    assert kept_bytes[0] > 3 * x.untyped_storage().nbytes()
