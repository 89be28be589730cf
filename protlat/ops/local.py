"""Operations that look at neighbours: window attention, short convolution, token shift. They reset at every border."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from protlat.ops.segments import Segments

# Query blocks per call: bounds the memory of copied keys and of the mask for very long input.
_BLOCKS_PER_SLAB = 512


def window_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    radius: int,
    dropout: float = 0.0,
    causal: bool = False,
) -> torch.Tensor:
    """Softmax attention over the keys with |i - j| <= radius of the same sequence; 0 <= i - j <= radius when causal.

    Blocks of `radius` queries stand against the 3 * radius keys around them (2 * radius when causal). Blocks run along
    the packed axis across borders, and the mask keeps sequences apart, so that no row is padded but in the last block.

    Parameters
    ----------
    q, k, v : torch.Tensor, shape (T, H, D)
    segments : Segments
    radius : int
        At least 1.
    dropout : float
        Share of weights dropped.
    causal : bool

    Returns
    -------
    torch.Tensor, shape (T, H, D)

    Notes
    -----
    Time O(T * radius * H * D), memory O(T * radius).
    """
    n_tokens, n_heads, head_dim = q.shape
    n_blocks = -(-n_tokens // radius)
    tail = n_blocks * radius - n_tokens
    ahead = 0 if causal else 1
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    # On CPU the fused kernel is slower than two batched products for blocks this small, four times so backward.
    attend = _attend_products if q.device.type == "cpu" else _attend_fused
    around = _around if training else _around_view
    q_blocks = (F.pad(q, (0, 0, 0, 0, 0, tail)) if tail else q).unflatten(0, (n_blocks, radius))
    k_blocks, v_blocks = (
        F.pad(x, (0, 0, 0, 0, radius, tail + ahead * radius)).view(n_blocks + 1 + ahead, radius, n_heads, head_dim)
        for x in (k, v)
    )
    out = []
    for first in range(0, n_blocks, _BLOCKS_PER_SLAB):
        last = min(first + _BLOCKS_PER_SLAB, n_blocks)
        mask = segments.window_mask(radius, radius, slice(first, last), q.dtype, causal)
        keys, values = (around(x[first : last + 1 + ahead], 2 + ahead) for x in (k_blocks, v_blocks))
        queries, keys, values = (x.transpose(1, 2) for x in (q_blocks[first:last], keys, values))
        out.append(attend(queries, keys, values, mask, dropout).transpose(1, 2))
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return whole.reshape(n_blocks * radius, n_heads, head_dim)[:n_tokens]


def _attend_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, dropout: float
) -> torch.Tensor:
    """q (N, H, W, D), k and v (N, H, 3 W, D), mask added to the scores -> (N, H, W, D)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def _attend_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, dropout: float
) -> torch.Tensor:
    """The same as two batched products; keeps the weights, 3 W a token and head, for the backward pass."""
    n_heads = q.shape[1]
    # Keys are laid out before they are transposed: a batched product would copy them transposed, at twice the cost.
    q, k, v = (x.flatten(0, 1) for x in (q * q.shape[-1] ** -0.5, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).unflatten(0, (-1, n_heads)).add_(mask)
    weights = F.dropout(scores.softmax(-1), dropout) if dropout else scores.softmax(-1)
    return torch.bmm(weights.flatten(0, 1), v).unflatten(0, (-1, n_heads))


def _around(blocks: torch.Tensor, n_joined: int) -> torch.Tensor:
    """Each run of `n_joined` blocks, joined: (N + n_joined - 1, W, ...) -> (N, n_joined * W, ...)."""
    # Copies: the backward pass of a strided view is many times slower than that of a concatenation.
    n = len(blocks) - n_joined + 1
    return torch.cat([blocks[i : i + n] for i in range(n_joined)], dim=1)


def _around_view(blocks: torch.Tensor, n_joined: int) -> torch.Tensor:
    """`_around` as an overlapping view, without copies and for reading only."""
    width = blocks.shape[1]
    # (N, ..., n_joined * W), the new axis then moved to its place.
    return blocks.flatten(0, 1).unfold(0, n_joined * width, width).movedim(-1, 1)


def shifted(x: torch.Tensor, offset: int, segments: Segments) -> torch.Tensor:
    """Row i of the result is row i + offset of x (T, C), zero where that lies outside i's sequence."""
    n_tokens = len(x)
    if abs(offset) >= n_tokens:
        return torch.zeros_like(x)
    moved = F.pad(x[offset:], (0, 0, 0, offset)) if offset > 0 else F.pad(x[:offset], (0, 0, -offset, 0))
    same = segments.same_sequence(offset)
    return moved if same is None else moved.masked_fill(~same, 0)


def depthwise_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, segments: Segments, causal: bool = False
) -> torch.Tensor:
    """Residual depthwise convolution: x_i + bias + sum over taps of weight[o + s] * x_{i + o}.

    Parameters
    ----------
    x : torch.Tensor, shape (T, C)
    weight : torch.Tensor, shape (2 s + 1, C)
    bias : torch.Tensor, shape (C,)
    segments : Segments
    causal : bool
        Taps stand at offsets -2 s to 0 in place of -s to s: ``weight[-1]`` is the token's own.

    Notes
    -----
    Shifted products instead of ``nn.Conv1d``, which is many times slower for short depthwise kernels in bf16 on CPU.
    """
    own = len(weight) - 1 if causal else len(weight) // 2
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out = torch.addcmul(bias, x, weight[own] + 1)
        for tap in range(len(weight)):
            if tap != own:
                out = torch.addcmul(out, shifted(x, tap - own, segments), weight[tap])
        return out
    return _depthwise_conv_in_place(x, weight, bias, segments, own)


def _depthwise_conv_in_place(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, segments: Segments, own: int
) -> torch.Tensor:
    """One pass a tap over the packed rows as if they were one sequence, then the rows near borders once more."""
    n_tokens = len(x)
    offsets = [tap - own for tap in range(len(weight)) if tap != own]
    out = torch.addcmul(bias, x, weight[own] + 1)
    for offset in offsets:
        if 0 < offset < n_tokens:
            out[:-offset].addcmul_(x[offset:], weight[own + offset])
        elif 0 < -offset < n_tokens:
            out[-offset:].addcmul_(x[:offset], weight[own + offset])
    if len(segments) > 1:
        rows = segments.near_borders(own)
        near = torch.addcmul(bias, x[rows], weight[own] + 1)
        for offset in offsets:
            same = segments.same_sequence(offset)
            assert same is not None
            moved = x[(rows + offset).clamp(0, n_tokens - 1)].masked_fill(~same[rows], 0)
            near.addcmul_(moved, weight[own + offset])
        out[rows] = near
    return out


def token_shift(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """A third of the channels from the token before, a third from the token after, the rest in place; x (T, C)."""
    part = x.shape[1] // 3
    if part == 0:
        return x
    before, here, after, rest = x.split((part, part, part, x.shape[1] - 3 * part), dim=1)
    return torch.cat([shifted(before, -1, segments), here, shifted(after, 1, segments), rest], dim=1)


def causal_token_shift(
    x: torch.Tensor, segments: Segments, memory: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the channels from the token before, the rest in place.

    Parameters
    ----------
    x : torch.Tensor, shape (T, C)
    segments : Segments
    memory : torch.Tensor, shape (S, C // 2), or None
        What an earlier call returned; None: zeros stand before the first token.

    Returns
    -------
    out : torch.Tensor, shape (T, C)
    memory : torch.Tensor, shape (S, C // 2)
    """
    part = x.shape[1] // 2
    before, rest = x[:, :part], x[:, part:]
    if segments.is_step:
        moved = torch.zeros_like(before) if memory is None else memory
        return torch.cat([moved, rest], dim=1), before
    moved = shifted(before, -1, segments)
    if memory is not None:
        moved = moved.index_copy(0, segments.cu_seqlens[:-1], memory)
    return torch.cat([moved, rest], dim=1), before.index_select(0, segments.cu_seqlens[1:] - 1)
