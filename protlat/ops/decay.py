"""Linear attention with a scalar decay per head, in one or both directions, in chunks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from protlat.ops.chunk_states import CausalChunks, causal_chunks, from_chunks, to_chunks
from protlat.ops.decay_scan import faded_sums
from protlat.ops.decay_weights import weighted
from protlat.ops.divisor import divisor
from protlat.ops.segments import Segments

DEFAULT_CHUNK = 64


class Memory(NamedTuple):
    """What a causal head keeps of the tokens before, float32 or wider.

    Attributes
    ----------
    values : torch.Tensor, shape (S, H, M, D)
        Decayed sum of k v^T of each of S sequences.
    keys : torch.Tensor, shape (S, H, M), or None
        Decayed sum of k; kept where there is a normaliser.
    """

    values: torch.Tensor
    keys: torch.Tensor | None


def decay_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    segments: Segments,
    causal: bool,
    own: torch.Tensor | None = None,
    normaliser: bool = False,
    chunk: int = DEFAULT_CHUNK,
) -> torch.Tensor:
    """Weights q_i . k_j times the decays met on the way from j to i, over i's own sequence.

    Forward, from j < i, the way counts log_decay over (j, i]; backward, from j > i, over [i, j): the decay of the query
    and of all tokens between, not that of the key. Reversing a sequence reverses its output.

    Parameters
    ----------
    q, k : torch.Tensor, shape (T, H, M)
    v : torch.Tensor, shape (T, H, D)
    log_decay : torch.Tensor, shape (T, H) or (H,), float32 or float64
        At most 0; (H,) is one decay for all tokens, which saves an exponential per token and chunk row.
    segments : Segments
    causal : bool
        Only j <= i.
    own : torch.Tensor, shape (T, H), or None
        Weight of j = i in place of q_i . k_i.
    normaliser : bool
        Divide by the sum of the weights, which must not be negative; a query whose weights are all zero reads zero.
    chunk : int
        Tokens per chunk; the result depends on it by rounding only.

    Returns
    -------
    torch.Tensor, shape (T, H, D), dtype of v

    Notes
    -----
    Time O(T H (C + M) D), memory O(T H (C + M D / C)). No exponent is positive: weights inside a chunk are masked
    before the exponential, and states fade by whole chunks. Sums of log-decays, of states and of weights are float32.

    References
    ----------
    Dao and Gu 2024 (Mamba-2), section 6; Hwang et al. 2024 (Hydra), section 2.3; Sun et al. 2023 (RetNet), equation 7.
    """
    # Autocast would take the float32 sums in half precision.
    with torch.autocast(v.device.type, enabled=False):
        return _attend(q, k, v, log_decay, segments, causal, own, normaliser, chunk, None)[0]


def decay_attention_from(
    start: Memory | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    segments: Segments,
    own: torch.Tensor | None = None,
    normaliser: bool = False,
    chunk: int = DEFAULT_CHUNK,
) -> tuple[torch.Tensor, Memory]:
    """Causal `decay_attention` behind earlier tokens, whose memory is `start` (None: there were none).

    Returns
    -------
    out : torch.Tensor, shape (T, H, D)
    after : Memory
        `start` of the next call.
    """
    log_decay = log_decay.expand(len(q), -1)
    if start is None:
        start = _empty(q, v, len(segments), normaliser)
    with torch.autocast(v.device.type, enabled=False):
        if max(segments.lengths) == 1:
            return _step(start, q, k, v, log_decay, own)
        out, after = _attend(q, k, v, log_decay, segments, True, own, normaliser, chunk, start)
    assert after is not None
    return out, after


def _step(
    start: Memory,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    own: torch.Tensor | None,
) -> tuple[torch.Tensor, Memory]:
    """One token of every sequence, without chunks."""
    dtype, wide = v.dtype, start.values.dtype
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    kept = log_decay.to(wide).exp()[..., None]
    old = start.values * kept[..., None]
    values = torch.addcmul(old, k[..., None], v[..., None, :])
    if own is None:
        out = torch.matmul(q[..., None, :], values).squeeze(-2)
    else:
        out = torch.matmul(q[..., None, :], old).squeeze(-2) + own.to(wide)[..., None] * v
    keys = None
    if start.keys is not None:
        keys = start.keys * kept + k
        out = out / divisor((q * keys).sum(-1, keepdim=True))
    return out.to(dtype), Memory(values, keys)


def _empty(q: torch.Tensor, v: torch.Tensor, n_sequences: int, normaliser: bool) -> Memory:
    n_heads, width = q.shape[1:]
    wide = torch.promote_types(v.dtype, torch.float32)
    values = q.new_zeros(n_sequences, n_heads, width, v.shape[2], dtype=wide)
    return Memory(values, values.new_zeros(n_sequences, n_heads, width) if normaliser else None)


class _Decays(NamedTuple):
    """Sums of log-decays of chunk rows, (H, N, C), or (H, 1, C) where all chunks are alike.

    `after` counts from the start of the chunk to the row itself, `before` to the row before it, `whole` (H, N),
    float64, to the end of the chunk.
    """

    after: torch.Tensor
    before: torch.Tensor
    whole: torch.Tensor


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    segments: Segments,
    causal: bool,
    own: torch.Tensor | None,
    normaliser: bool,
    chunk: int,
    start: Memory | None,
) -> tuple[torch.Tensor, Memory | None]:
    if own is not None and normaliser:
        raise ValueError("decay_attention: a free own weight may be negative, so it cannot stand with a normaliser")
    chunks = causal_chunks(segments, _chunk_size(chunk, segments))
    rows_q, rows_k, rows_v = (to_chunks(x.to(v.dtype), chunks) for x in (q, k, v))
    if not chunks.is_view:
        rows_k = rows_k.masked_fill(chunks.absent, 0)
    decays = _decays(log_decay, chunks)
    wide = decays.after.dtype
    scores = _product(rows_q, rows_k.transpose(-1, -2))
    scores = weighted(scores, decays.after, decays.before, causal, own is None)
    out = _product(scores, rows_v)
    total = scores.sum(-1, keepdim=True, dtype=wide) if normaliser else None
    after = None
    for reach, worth, backward in _directions(decays, segments, chunks, causal, start is not None):
        far_q, far_k = _scaled(rows_q, reach), _scaled(rows_k, worth)
        made = _product(far_k.transpose(-1, -2), rows_v)
        states, values = _pass_on(made, decays, segments, chunks, backward, None if start is None else start.values)
        out = torch.baddbmm(out.flatten(0, 1), far_q.flatten(0, 1), states.to(v.dtype).flatten(0, 1)).view_as(out)
        keys = None
        if total is not None:
            before = None if start is None or start.keys is None else start.keys[..., None]
            made = far_k.sum(-2, dtype=wide)[..., None]
            sums, keys = _pass_on(made, decays, segments, chunks, backward, before)
            total = total + torch.matmul(far_q.to(wide), sums)
        if values is not None:
            after = Memory(values, None if keys is None else keys.squeeze(-1))
    if total is not None:
        out = out / divisor(total).to(out.dtype)
    packed = from_chunks(out, chunks)
    return packed if own is None else torch.addcmul(packed, own.to(v.dtype)[..., None], v), after


def _chunk_size(wanted: int, segments: Segments) -> int:
    """Not much more than the longest sequence."""
    return min(wanted, 1 << (max(segments.lengths) - 1).bit_length())


def _decays(log_decay: torch.Tensor, chunks: CausalChunks) -> _Decays:
    if log_decay.dim() == 1:
        steps = torch.arange(1, chunks.size + 1, device=log_decay.device, dtype=log_decay.dtype)
        # Rows beyond a sequence's end fade as well; nothing stands behind them.
        after = (log_decay[:, None] * steps)[:, None]
    else:
        rows = to_chunks(log_decay[..., None], chunks)
        after = rows.masked_fill(chunks.absent, 0).squeeze(-1).cumsum(-1)
    before = F.pad(after[..., :-1], (1, 0))
    return _Decays(after, before, after[..., -1].double().expand(-1, len(chunks.segment)))


def _directions(
    decays: _Decays, segments: Segments, chunks: CausalChunks, causal: bool, with_state: bool
) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Ways that states take from chunk to chunk: decay of each row to the border that they enter by, decay to the one
    that they leave by, (H, N or 1, C, 1) each, and whether they go backward; none where every sequence is one chunk."""
    if len(chunks.segment) == len(segments) and not with_state:
        return []
    after, before = decays.after[..., None], decays.before[..., None]
    end = after[..., -1:, :]
    forward = (after.exp(), (end - after).exp(), False)
    return [forward] if causal else [forward, ((end - before).exp(), before.exp(), True)]


def _scaled(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """(H, N, C, M) times (H, N or 1, C, 1)."""
    # Expanded by hand: the gradient is then first added up over M alone, which is many times faster than over N and M.
    return rows * factors.expand(-1, rows.shape[1], -1, -1).to(rows.dtype)


def _pass_on(
    made: torch.Tensor,
    decays: _Decays,
    segments: Segments,
    chunks: CausalChunks,
    backward: bool,
    start: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """States (H, N, M, D) that enter each chunk, from those that chunks make; with `start`, those (S, H, M, D) after all."""
    shape, whole = made.shape, decays.whole
    fresh, first, last = _borders(segments, chunks)
    if start is None:
        return faded_sums(made.flatten(2), whole, fresh, backward).view(shape), None
    wide = decays.after.dtype
    flat, begin = made.to(wide).flatten(2), start.to(wide).transpose(0, 1).flatten(2)
    fades = whole.exp().to(wide)[..., None]
    seen = faded_sums(flat.index_add(1, first, begin * fades[:, first]), whole, fresh).index_add(1, first, begin)
    after = torch.addcmul(flat[:, last], seen[:, last], fades[:, last])
    return seen.view(shape), after.unflatten(2, shape[2:]).transpose(0, 1)


def _borders(segments: Segments, chunks: CausalChunks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whether each chunk is the first of its sequence; the first and the last chunk of every sequence."""

    def make() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        counts = torch.tensor(chunks.counts)
        ends = counts.cumsum(0)
        fresh = torch.zeros(int(ends[-1]), dtype=torch.bool).index_fill_(0, ends - counts, True)
        return fresh.to(segments.device), (ends - counts).to(segments.device), (ends - 1).to(segments.device)

    return segments.derive(("decay", chunks.size), make)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(H, N, *, *) matrices."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])
