"""Linear attention over pixels: definition, strides, masks, contexts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from protlat.errors import ConfigError
from protlat.nn.image_attention import ImageLinearAttention, reduced_mask
from protlat.ops import reference

LAYERS = {
    "plain": {},
    "queries-not-normed": {"norm_queries": False},
    "kernel-3": {"kernel_size": 3, "padding": 1},
    "kernel-3-valid": {"kernel_size": 3},
    "stride-2": {"kernel_size": 3, "padding": 1, "stride": 2},
    "stride-2-kernel-1": {"stride": 2},
    "even": {"kernel_size": 2, "padding": 1, "stride": 2},
    "wide-padding": {"kernel_size": 1, "padding": 1},
}


def build(name: str) -> ImageLinearAttention:
    torch.manual_seed(2)
    return ImageLinearAttention(5, chan_out=4, key_dim=3, value_dim=6, heads=2, **LAYERS[name]).double()


def plain_mask(mask: torch.Tensor, size: int, stride: int, padding: int) -> torch.Tensor:
    """Mask of the output of a convolution of one image (H, W), by its definition."""
    shape = [(n + 2 * padding - size) // stride + 1 for n in mask.shape]
    out = torch.zeros(shape, dtype=torch.bool)
    for i in range(shape[0]):
        for j in range(shape[1]):
            y, z = (s * stride - padding + (size - 1) // 2 for s in (i, j))
            out[i, j] = 0 <= y < mask.shape[0] and 0 <= z < mask.shape[1] and mask[y, z]
    return out


def plain(
    layer: ImageLinearAttention, x: torch.Tensor, mask: torch.Tensor | None, context: torch.Tensor | None
) -> torch.Tensor:
    """The layer on one image (C, H, W), by loops over pixels."""
    size, stride, padding = layer.project.kernel_size[0], layer.project.stride[0], layer.project.padding[0]
    heads, width, depth = layer.heads, layer.key_dim, layer.value_dim
    whole = x if mask is None else x * mask
    projected = reference.convolve(whole, layer.project.weight, layer.project.bias, stride, padding)
    everywhere = torch.ones(projected.shape[1:], dtype=torch.bool)
    inside = everywhere if mask is None else plain_mask(mask, size, stride, padding)
    rows = projected.flatten(1).T
    seen = inside.flatten()
    if context is not None:
        middle = layer.project.weight[:, :, (size - 1) // 2, (size - 1) // 2]
        rows = torch.cat([rows, context.T @ middle.T + layer.project.bias])
        seen = torch.cat([seen, torch.ones(context.shape[1], dtype=torch.bool)])
    q, k, v = rows.split([heads * width, heads * width, heads * depth], 1)
    n = inside.numel()
    values = [
        reference.image_linear_attention(a[:n], b, c, seen, layer.norm_queries)
        for a, b, c in zip(q.split(width, 1), k.split(width, 1), v.split(depth, 1), strict=True)
    ]
    image = torch.cat(values, 1).T.view(-1, *inside.shape) * inside
    mixed = reference.convolve(image, layer.mix.weight, layer.mix.bias, 1, padding)
    return mixed if mask is None else mixed * plain_mask(inside, size, 1, padding)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("given", ["nothing", "mask", "context", "both"])
def test_layer_is_its_definition(rng: torch.Generator, name: str, given: str) -> None:
    layer = build(name)
    x = torch.randn(2, 5, 6, 5, generator=rng, dtype=torch.float64).requires_grad_()
    mask = torch.rand(2, 6, 5, generator=rng) < 0.7 if given in ("mask", "both") else None
    context = torch.randn(2, 5, 3, generator=rng, dtype=torch.float64) if given in ("context", "both") else None
    ours = layer(x, mask, context)
    masks, contexts = ([None, None] if part is None else part for part in (mask, context))
    theirs = torch.stack([plain(layer, *parts) for parts in zip(x, masks, contexts, strict=True)])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    weight = torch.randn(ours.shape, generator=rng, dtype=torch.float64)
    parameters = [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), parameters),
        torch.autograd.grad((theirs * weight).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", LAYERS)
def test_masked_pixels_are_neither_read_nor_written(rng: torch.Generator, name: str) -> None:
    layer = build(name)
    x = torch.randn(2, 5, 9, 8, generator=rng, dtype=torch.float64)
    mask = torch.rand(2, 9, 8, generator=rng) < 0.6
    results = []
    for poison in (0.0, 1e9, torch.nan):
        image = x.masked_fill(~mask[:, None], poison).requires_grad_()
        out = layer(image, mask)
        gradient = torch.autograd.grad(out.square().sum(), image)[0]
        assert not gradient.masked_select(~mask[:, None]).any()
        results.append((out, gradient))
    for other in results[1:]:
        assert torch.equal(results[0][0], other[0])
        assert torch.equal(results[0][1], other[1])
    written = reduced_mask(reduced_mask(mask, layer.project), layer.mix)
    assert not results[0][0].masked_select(~written[:, None]).any()
    assert results[0][0].abs().sum(1).gt(0).equal(written)


def test_a_mask_is_a_crop(rng: torch.Generator) -> None:
    """An image padded to a larger one and masked gives what the image alone gives."""
    layer = build("kernel-3")
    x = torch.randn(1, 5, 7, 6, generator=rng, dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (0, 4, 0, 3), value=77.0)
    mask = torch.nn.functional.pad(torch.ones(1, 7, 6, dtype=torch.bool), (0, 4, 0, 3))
    torch.testing.assert_close(layer(padded, mask)[..., :7, :6], layer(x), rtol=1e-10, atol=1e-12)


def test_images_of_a_batch_do_not_see_each_other(rng: torch.Generator) -> None:
    layer = build("stride-2")
    x = torch.randn(3, 5, 8, 8, generator=rng, dtype=torch.float64)
    context = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64)
    whole = layer(x, None, context)
    for b in range(3):
        part = slice(b, b + 1)
        torch.testing.assert_close(whole[part], layer(x[part], None, context[part]), rtol=1e-10, atol=1e-12)


def test_an_image_without_pixels_is_zero() -> None:
    layer = build("kernel-3")
    x = torch.full((2, 5, 4, 4), torch.nan, dtype=torch.float64)
    x[1] = 1.0
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[1] = True
    out = layer(x, mask)
    assert not out[0].any()
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_extreme_keys_and_bfloat16(rng: torch.Generator) -> None:
    layer = build("plain").float()
    x = 100 * torch.randn(1, 5, 20, 20, generator=rng)
    assert layer(1e4 * x).isfinite().all()
    wide = layer(x / 100)
    narrow = layer.bfloat16()((x / 100).bfloat16()).float()
    assert (wide - narrow).norm() / wide.norm() < 0.03


def test_shapes_that_do_not_fit_are_refused() -> None:
    layer, x = build("plain"), torch.zeros(2, 5, 4, 3, dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"mask: expected bool of shape \(2, 4, 3\)"):
        layer(x, torch.ones(2, 3, 4, dtype=torch.bool))
    with pytest.raises(ConfigError, match="mask: expected bool"):
        layer(x, torch.ones(2, 4, 3))
    with pytest.raises(ConfigError, match=r"context: expected shape \(2, 5, M\)"):
        layer(x, context=torch.zeros(2, 7, 5, dtype=torch.float64))


def test_memory_is_linear_in_pixels() -> None:
    """600 x 600 pixels: an N x N matrix would need 500 GB."""
    code = (
        "import resource, torch\n"
        "from protlat.nn.image_attention import ImageLinearAttention\n"
        "torch.set_num_threads(1)\n"
        "layer = ImageLinearAttention(4, key_dim=8, value_dim=8, heads=2)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "layer(torch.randn(1, 4, 30, 30)).sum().backward()\n"
        "before = peak()\n"
        "layer(torch.randn(1, 4, 600, 600)).sum().backward()\n"
        "print(peak() - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # 360,000 pixels of 48 projected channels are 69 MB; forward and backward hold some of such tensors.
    assert float(run.stdout) < 700
