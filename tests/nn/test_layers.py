"""Positions, norms, feature maps and cores against their definitions."""

from __future__ import annotations

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.models import Encoder, ModelConfig
from protlat.nn import positions
from protlat.nn.attention.linear import EfficientAttentionConfig, LinearAttentionConfig
from protlat.nn.attention.softmax import SoftmaxAttentionConfig
from protlat.nn.attention.window import WindowAttentionConfig
from protlat.nn.feature_maps import EluConfig, ReluConfig, SoftmaxConfig
from protlat.nn.norms import build_norm
from protlat.nn.positions import ROTARY_BASE, SinusoidalPositions, rotate
from protlat.ops import reference
from protlat.ops.segments import Segments

LENGTHS = [5, 1, 12, 12]
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def qkv(generator: torch.Generator, dim: int = 8) -> list[torch.Tensor]:
    return [torch.randn(sum(LENGTHS), 2, dim, generator=generator, dtype=torch.float64) for _ in range(3)]


def by_sequence(plain, *packed: torch.Tensor) -> torch.Tensor:
    return torch.cat([plain(*parts) for parts in zip(*(x.split(LENGTHS) for x in packed), strict=True)])


def rotation(length: int, dim: int) -> torch.Tensor:
    return torch.stack([reference.rotary_matrix(i, dim, ROTARY_BASE) for i in range(length)])


def test_rotate_is_the_rotation_matrix(rng: torch.Generator) -> None:
    q = qkv(rng)[0]
    expected = by_sequence(lambda x: torch.einsum("imn,ihn->ihm", rotation(len(x), 8), x), q)
    torch.testing.assert_close(rotate(q, Segments(LENGTHS)), expected, **TOLERANCE)


def test_rotary_scores_depend_on_distance_only(rng: torch.Generator) -> None:
    q, k = torch.randn(2, 1, 1, 16, generator=rng, dtype=torch.float64).expand(2, 60, 1, 16)
    segments = Segments([60])
    scores = torch.einsum("ihd,jhd->ij", rotate(q, segments), rotate(k, segments))
    torch.testing.assert_close(scores[:-7, :-7], scores[7:, 7:], rtol=1e-9, atol=1e-9)


def test_rotary_angles_stay_exact_far_out() -> None:
    segments = Segments([1_000_001])
    x = torch.zeros(1_000_001, 1, 2)
    x[:, :, 0] = 1
    turned = rotate(x, segments)[-1, 0]
    expected = torch.tensor([1_000_000.0], dtype=torch.float64)
    torch.testing.assert_close(turned.double(), torch.cat([expected.cos(), expected.sin()]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("feature_map", [EluConfig(), ReluConfig(), SoftmaxConfig()])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("way", ["split", "chunked"])
def test_linear_attention(rng: torch.Generator, feature_map, rotary: bool, way: str) -> None:
    config = LinearAttentionConfig(
        n_heads=2, feature_map=feature_map, rotary=rotary, implementation=way, chunk=4, eps=1e-13
    )
    core, phi = config.build(8, False), feature_map.build()
    q, k, v = qkv(rng)
    expected = by_sequence(
        lambda a, b, c: reference.linear_attention(phi(a), phi(b), c, rotation(len(a), 8) if rotary else None), q, k, v
    )
    torch.testing.assert_close(core(q, k, v, Segments(LENGTHS)), expected, **TOLERANCE)


@pytest.mark.parametrize("width", [8, 1])
@pytest.mark.parametrize("way", ["split", "chunked"])
def test_write_gate_acts_on_sum_and_normaliser(rng: torch.Generator, width: int, way: str) -> None:
    q, k, v = qkv(rng)
    gate = torch.rand(sum(LENGTHS), 2, width, generator=rng, dtype=torch.float64)
    segments = Segments(LENGTHS)
    efficient = EfficientAttentionConfig(n_heads=2, implementation=way, chunk=4).build(8, False)
    expected = by_sequence(reference.efficient_attention, q, k, v, gate)
    torch.testing.assert_close(efficient(q, k, v, segments, gate), expected, **TOLERANCE)
    linear = LinearAttentionConfig(n_heads=2, implementation=way, chunk=4, eps=1e-13).build(8, False)
    phi = EluConfig().build()
    expected = by_sequence(lambda a, b, c, g: reference.linear_attention(phi(a), phi(b) * g, c), q, k, v, gate)
    torch.testing.assert_close(linear(q, k, v, segments, gate), expected, **TOLERANCE)


def test_efficient_attention_scale(rng: torch.Generator) -> None:
    q, k, v = qkv(rng)
    segments = Segments(LENGTHS)
    plain = EfficientAttentionConfig(n_heads=2).build(8, False)(q, k, v, segments)
    torch.testing.assert_close(
        EfficientAttentionConfig(n_heads=2, scale=0.25).build(8, False)(q, k, v, segments), plain / 4
    )


def test_softmax_attention(rng: torch.Generator) -> None:
    q, k, v = qkv(rng)
    core = SoftmaxAttentionConfig(n_heads=2, rotary=False).build(8, False)
    expected = by_sequence(reference.softmax_attention, q, k, v)
    torch.testing.assert_close(core(q, k, v, Segments(LENGTHS)), expected, **TOLERANCE)


def test_a_window_wider_than_the_sequence_is_full_attention(rng: torch.Generator) -> None:
    q, k, v = qkv(rng)
    segments = Segments(LENGTHS)
    full = SoftmaxAttentionConfig(n_heads=2).build(8, False)(q, k, v, segments)
    torch.testing.assert_close(
        WindowAttentionConfig(n_heads=2, radius=40).build(8, False)(q, k, v, segments), full, **TOLERANCE
    )


def test_linear_attention_weights_sum_to_one_for_tiny_keys() -> None:
    # A floor that did not scale with the features would swallow keys of 1e-17.
    q = torch.zeros(6, 1, 4, dtype=torch.float64)
    v = torch.full((6, 1, 4), 3.0, dtype=torch.float64)
    out = LinearAttentionConfig(n_heads=1).build(4, False)(q, q - 40, v, Segments([6]))
    torch.testing.assert_close(out, v, rtol=1e-5, atol=0)


def test_relu_query_without_features_reads_zero() -> None:
    x = torch.full((4, 1, 4), -1.0)
    out = LinearAttentionConfig(n_heads=1, feature_map=ReluConfig()).build(4, False)(
        x, x, torch.ones(4, 1, 4), Segments([4])
    )
    assert torch.equal(out, torch.zeros(4, 1, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm(rng: torch.Generator, dtype: torch.dtype) -> None:
    x = torch.randn(7, 33, generator=rng, dtype=torch.float64) * 5
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    # bfloat16 keeps 8 bits: one rounding of the input, one of the factor, one of the product.
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    ours = build_norm("rms", 33).to(dtype)(x.to(dtype))
    torch.testing.assert_close(ours.double(), expected, **tolerance)


def test_sinusoidal_positions_follow_the_formula() -> None:
    segments = Segments([4, 3])
    table = SinusoidalPositions(6)(torch.zeros(7, 6, dtype=torch.float64), segments)
    for row, position in enumerate([0, 1, 2, 3, 0, 1, 2]):
        for j in range(3):
            angle = torch.tensor(position / 10_000 ** (2 * j / 6), dtype=torch.float64)
            torch.testing.assert_close(table[row, j], angle.sin())
            torch.testing.assert_close(table[row, 3 + j], angle.cos())
    lower = SinusoidalPositions(6, amplitude=0.25)(torch.zeros(7, 6, dtype=torch.float64), segments)
    torch.testing.assert_close(lower, table / 4)


def test_waves_at_the_input_do_not_drown_a_fresh_embedding() -> None:
    config = ModelConfig.parse({"d_model": 64, "n_layers": 1, "head_dim": 16, "positions": {"kind": "sinusoidal"}})
    torch.manual_seed(0)
    encoder = Encoder(config, PROTEIN)
    with torch.no_grad():
        here = encoder(torch.arange(4, 24).repeat(20), Segments([400]), layers=(0,))[0]
        token = encoder.embedding(torch.arange(4, 24).repeat(20))
    assert 0.3 < token.std() / here.std() < 0.9


@pytest.mark.parametrize("n_tokens", [7, 8, 30])
def test_rotation_in_slabs(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, n_tokens: int) -> None:
    x = torch.randn(n_tokens, 2, 6, generator=rng, dtype=torch.float64)
    segments = Segments([3, n_tokens - 3])
    whole = rotate(x.requires_grad_(), segments)
    monkeypatch.setattr(positions, "_ROWS_AT_ONCE", 7)
    with torch.no_grad():
        # A slice of a wider tensor, as heads are.
        wider = torch.cat([x, x], dim=1)[:, :2]
        assert torch.equal(rotate(wider, segments), whole)
