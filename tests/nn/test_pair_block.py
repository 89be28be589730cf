"""Pooling and reading the pixels of tiles, and the block around it."""

from __future__ import annotations

import pytest
import torch

from protlat.errors import ConfigError
from protlat.nn.image_attention import ImageLinearAttention, PooledPixels
from protlat.nn.pair_block import ChannelNorm, PairBlock
from protlat.nn.pair_features import PairFeatures, separation_classes
from protlat.tasks.pairs import SEPARATION_STARTS


def image(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def attention(norm_queries: bool = True) -> ImageLinearAttention:
    torch.manual_seed(1)
    return ImageLinearAttention(5, key_dim=3, value_dim=4, heads=2, norm_queries=norm_queries).double()


@pytest.mark.parametrize("norm_queries", [True, False])
def test_pool_and_read_are_the_layer_itself(rng: torch.Generator, norm_queries: bool) -> None:
    layer, x = attention(norm_queries), image(rng, 3, 5, 6, 7)
    mask = torch.rand(3, 6, 7, generator=rng) < 0.7
    mask[2] = False
    whole = layer(x, mask)
    parts = layer.read(x, layer.pool(x, mask).state)
    where = mask[:, None].expand_as(whole)
    torch.testing.assert_close(parts[where], whole[where], rtol=1e-10, atol=1e-12)


def test_states_of_tiles_add_up(rng: torch.Generator) -> None:
    layer, x = attention(), 20 * image(rng, 1, 5, 8, 12)  # large, so that peaks of tiles differ by much
    mask = torch.rand(1, 8, 12, generator=rng) < 0.8
    mask[:, :, 8:] = False  # the last tile holds no pixel
    whole = layer.pool(x, mask).state
    tiles = [layer.pool(x[..., i : i + 4], mask[..., i : i + 4]) for i in (0, 4, 8)]
    together = tiles[0].plus(tiles[1]).plus(tiles[2])
    torch.testing.assert_close(together.state, whole, rtol=1e-10, atol=1e-12)
    stacked = PooledPixels(*(torch.cat(found) for found in zip(*tiles, strict=True)))
    merged = stacked.merged(torch.tensor([0, 1, 0]), 2).state
    torch.testing.assert_close(merged[0], tiles[0].state[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(merged[1], tiles[1].state[0], rtol=1e-10, atol=1e-12)


def test_gradients_through_merged_states_are_those_of_the_whole(rng: torch.Generator) -> None:
    layer, x, mask = attention(), image(rng, 1, 5, 4, 8), torch.ones(1, 4, 8, dtype=torch.bool)
    direction = image(rng, 1, 6, 8)
    (layer.pool(x, mask).state * direction).sum().backward()
    assert layer.project.weight.grad is not None
    expected = layer.project.weight.grad.clone()
    layer.zero_grad()
    halves = torch.cat([x[..., :4], x[..., 4:]])
    merged = layer.pool(halves, mask[..., :4].repeat(2, 1, 1)).merged(torch.tensor([0, 0]), 1)
    (merged.state * direction).sum().backward()
    torch.testing.assert_close(layer.project.weight.grad, expected, rtol=1e-10, atol=1e-12)


def test_an_image_without_pixels_leaves_a_state_of_zeros(rng: torch.Generator) -> None:
    found = attention().pool(image(rng, 1, 5, 3, 3), torch.zeros(1, 3, 3, dtype=torch.bool))
    assert (found.state == 0).all()


def test_tiles_take_kernels_of_one_pixel_only(rng: torch.Generator) -> None:
    layer = ImageLinearAttention(5, kernel_size=3, padding=1, heads=1).double()
    with pytest.raises(ConfigError, match="kernel_size and stride must be 1"):
        layer.pool(image(rng, 1, 5, 4, 4), torch.ones(1, 4, 4, dtype=torch.bool))


def test_channel_norm_is_layer_norm_of_each_pixel(rng: torch.Generator) -> None:
    norm, x = ChannelNorm(5).double(), image(rng, 2, 5, 3, 4)
    pixel = x[1, :, 2, 3]
    expected = (pixel - pixel.mean()) / (pixel.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x)[1, :, 2, 3], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mixer", ["linear_attention", "convolution"])
def test_what_lies_outside_the_mask_does_not_leak(rng: torch.Generator, mixer: str) -> None:
    torch.manual_seed(3)
    block = PairBlock(6, mixer, 2, 4, 2).double()  # type: ignore[arg-type]  # a mixer by name
    torch.nn.init.normal_(block.out.weight)
    x, mask = image(rng, 1, 6, 9, 9), torch.ones(1, 9, 9, dtype=torch.bool)
    mask[:, 5:] = False
    other = x.clone()
    other[:, :, 5:] = 1000 * image(rng, 1, 6, 4, 9)
    where = mask[:, None].expand_as(x)
    torch.testing.assert_close(block(x, mask)[where], block(other, mask)[where], rtol=1e-10, atol=1e-12)


def test_pixels_follow_their_definition(rng: torch.Generator) -> None:
    torch.manual_seed(2)
    layer = PairFeatures(4, 3).double()
    a, c, b, d = (image(rng, 1, n, k) for n, k in ((5, 4), (5, 3), (6, 4), (6, 3)))
    classes = torch.randint(0, len(SEPARATION_STARTS), (1, 5, 6), generator=rng)
    found = layer((a, c), (b, d), classes)
    i, j = 3, 1
    product = layer.product.weight @ (a[0, i] * b[0, j]) + layer.product.bias
    expected = product + c[0, i] + d[0, j] + layer.separation.weight[classes[0, i, j]]
    torch.testing.assert_close(found[0, :, i, j], expected, rtol=1e-12, atol=1e-12)


def test_separations_are_told_apart_up_to_32_and_by_ratio_above() -> None:
    found = separation_classes(torch.tensor([-3, 0, 1, 31, 32, 33, 39, 40, 100_000])).tolist()
    assert found[:5] == [0, 0, 1, 31, 32]
    assert found[5] == found[6] == 32 == found[7] - 1
    assert found[-1] == len(SEPARATION_STARTS) - 1
