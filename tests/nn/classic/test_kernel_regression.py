"""Kernel regression: its definition, slabs, leaving one out, a learned width."""

from __future__ import annotations

import pytest
import torch

from protlat.nn.classic import KernelRegression, kernel_regression


def plain(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, width: float) -> torch.Tensor:
    weights = torch.stack([-(width**2) * (x - key).square().sum() / 2 for key in keys]).softmax(0)
    return sum(w * y for w, y in zip(weights, values, strict=True))


@pytest.mark.parametrize("numbers", [1, 40, 10**6])
def test_definition_in_slabs(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr(kernel_regression, "_NUMBERS_AT_ONCE", numbers)
    queries, keys, values = (
        torch.randn(n, width, generator=rng, dtype=torch.float64) for n, width in ((7, 3), (11, 3), (11, 2))
    )
    ours = KernelRegression(0.8).double()(queries, keys, values)
    torch.testing.assert_close(ours, torch.stack([plain(x, keys, values, 0.8) for x in queries]))
    left_out = KernelRegression(0.8).double().leave_one_out(keys, values)
    for i, row in enumerate(left_out):
        others = torch.arange(11) != i
        torch.testing.assert_close(row, plain(keys[i], keys[others], values[others], 0.8))


def test_one_number_a_point(rng: torch.Generator) -> None:
    x, y = (torch.rand(9, generator=rng, dtype=torch.float64) for _ in range(2))
    ours = KernelRegression(3.0).double()(x, x, y)
    theirs = torch.stack([((-9 * (a - x).square() / 2).softmax(0) * y).sum() for a in x])
    torch.testing.assert_close(ours, theirs)


def test_narrow_kernels_read_the_nearest_and_wide_ones_the_mean(rng: torch.Generator) -> None:
    keys, values = torch.randn(20, 4, generator=rng), torch.randn(20, generator=rng)
    torch.testing.assert_close(KernelRegression(300.0)(keys + 1e-3, keys, values), values)
    wide = KernelRegression(1e-4)(keys, keys, values)
    torch.testing.assert_close(wide, values.mean().expand(20), rtol=1e-4, atol=1e-5)


def test_a_common_offset_does_not_blur_distances(rng: torch.Generator) -> None:
    """Embeddings share a large mean; in float32 the plain expansion |a|^2 + |b|^2 - 2ab would drown in it."""
    a, b = torch.randn(5, 8, generator=rng), torch.randn(6, 8, generator=rng)
    exact = torch.cdist(a.double(), b.double()).square().float()
    torch.testing.assert_close(kernel_regression.squared_distances(a + 1000, b + 1000), exact, rtol=1e-3, atol=1e-3)


def test_the_learned_width_lowers_the_leave_one_out_error(rng: torch.Generator) -> None:
    x = 5 * torch.rand(60, generator=rng)
    y = 2 * x.sin() + x**0.8 + 0.3 * torch.randn(60, generator=rng)
    module = KernelRegression(1.0, learned=True)
    optim = torch.optim.Adam(module.parameters(), lr=0.1)

    def error(width: float) -> float:
        return float((KernelRegression(width).leave_one_out(x, y) - y).square().mean())

    for _ in range(300):
        optim.zero_grad()
        loss = (module.leave_one_out(x, y) - y).square().mean()
        loss.backward()
        optim.step()
    width = float(module.width.detach())
    # The minimum is flat: its width is known to a factor, its error to a few percent.
    assert error(width) < 1.05 * min(error(w) for w in (2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0))
    assert error(width) < 0.2 * error(0.1)


def test_leaving_one_out_needs_two() -> None:
    with pytest.raises(ValueError, match="at least two"):
        KernelRegression().leave_one_out(torch.zeros(1, 2), torch.zeros(1))
