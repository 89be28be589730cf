"""Masked softmax, scaled dot product and multi-head attention, against plain loops and against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protlat.errors import ConfigError
from protlat.nn.classic import MultiHeadAttention, ScaledDotProductAttention, masked_softmax


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("between", [(), (3,)])
@pytest.mark.parametrize("lengths", [[4, 0, 2], [[4, 1, 0], [0, 0, 0], [2, 3, 4]]])
def test_only_valid_keys_have_weights(
    rng: torch.Generator, dtype: torch.dtype, between: tuple[int, ...], lengths: list[int]
) -> None:
    scores = 5 * torch.randn(3, *between, 3, 4, generator=rng, dtype=torch.float64)
    # The largest number of float16 does not open a hidden key.
    scores[1] += 60_000
    scores = scores.to(dtype)
    weights = masked_softmax(scores, torch.tensor(lengths))
    assert weights.dtype == dtype
    for row in range(3):
        for query in range(3):
            n = lengths[row][query] if isinstance(lengths[row], list) else lengths[row]
            ours = weights[row, ..., query, :]
            assert torch.equal(ours[..., n:], torch.zeros_like(ours[..., n:]))
            expected = scores[row, ..., query, :n].double().softmax(-1)
            torch.testing.assert_close(ours[..., :n].double(), expected, rtol=0, atol=torch.finfo(dtype).eps)


def test_gradients_of_rows_without_keys_are_zero(rng: torch.Generator) -> None:
    scores = torch.randn(2, 2, 3, generator=rng).requires_grad_()
    weight = torch.randn(2, 2, 3, generator=rng)
    gradient = torch.autograd.grad((masked_softmax(scores, torch.tensor([0, 2])) * weight).sum(), scores)[0]
    assert torch.equal(gradient[0], torch.zeros(2, 3))
    assert torch.equal(gradient[1, :, 2], torch.zeros(2))
    assert gradient[1, :, :2].abs().min() > 0


def test_lengths_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"need \(2,\) or \(2, 3\)"):
        masked_softmax(torch.zeros(2, 3, 4), torch.tensor([1, 2, 3]))


def test_dot_product_of_each_query(rng: torch.Generator) -> None:
    q, k, v = (torch.randn(2, n, 3, generator=rng, dtype=torch.float64) for n in (4, 5, 5))
    out = ScaledDotProductAttention()(q, k, v, torch.tensor([5, 2]))
    for row, n in enumerate((5, 2)):
        for i in range(4):
            weights = torch.stack([(q[row, i] @ k[row, j]) / 3**0.5 for j in range(n)]).softmax(0)
            torch.testing.assert_close(out[row, i], weights @ v[row, :n])


def test_dropout_acts_in_training_only(rng: torch.Generator) -> None:
    q = torch.randn(2, 6, 3, generator=rng)
    attend = ScaledDotProductAttention(0.5).eval()
    assert torch.equal(attend(q, q, q), attend(q, q, q))
    attend.train()
    assert not torch.equal(attend(q, q, q), attend(q, q, q))


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_equals_torch(rng: torch.Generator, bias: bool) -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(8, 2, key_dim=5, value_dim=6, bias=bias).double()
    theirs = nn.MultiheadAttention(8, 2, bias=bias, kdim=5, vdim=6, batch_first=True).double()
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        for name, part in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), parts, strict=True):
            getattr(theirs, name).copy_(part.weight)
        theirs.out_proj.weight.copy_(ours.mix.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            theirs.out_proj.bias.copy_(ours.mix.bias)
    queries, keys, values = (
        torch.randn(3, n, width, generator=rng, dtype=torch.float64) for n, width in ((4, 8), (7, 5), (7, 6))
    )
    lengths = torch.tensor([7, 1, 3])
    expected = theirs(queries, keys, values, key_padding_mask=torch.arange(7) >= lengths[:, None], need_weights=False)[
        0
    ]
    torch.testing.assert_close(ours(queries, keys, values, lengths), expected)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="d_model 10 is no multiple of n_heads 4"):
        MultiHeadAttention(10, 4)
    assert not any(name.endswith("bias") for name, _ in MultiHeadAttention(8, 4).named_parameters())
