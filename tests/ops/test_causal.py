"""Causal operations against their definitions in float64: values, gradients, states, extremes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from protlat.nn.positions import ROTARY_BASE, rotate
from protlat.ops import causal_exp, chunk_states, local, reference
from protlat.ops.carry import carry_table, last_rows, with_memory
from protlat.ops.causal import Past, causal_linear_attention
from protlat.ops.causal_exp import PeakedPast, causal_exp_attention
from protlat.ops.segments import Segments

LAYOUTS = [[1], [37], [5, 1, 16, 16, 16, 33], [1, 1, 1], [64, 3]]
CHUNKS = [1, 5, 8, 128]
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def heads(generator: torch.Generator, n_tokens: int, dim: int = 6) -> list[torch.Tensor]:
    return [torch.randn(n_tokens, 2, dim, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, **options: object) -> torch.Tensor:
    return causal_linear_attention(q.exp(), k.exp(), v, segments, **options)[0]


def exponential(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, **options: object
) -> torch.Tensor:
    return causal_exp_attention(q, k, v, segments, **options)[0]


def plain_linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
    return reference.causal_linear_attention(q.exp(), k.exp(), v, **options)


FORMS = {
    "linear": (linear, plain_linear),
    "exponential": (exponential, reference.causal_exp_attention),
    "referenced": (exponential, reference.causal_exp_attention),
    "merged": (exponential, reference.causal_exp_attention),
}


@pytest.fixture(params=FORMS)
def form(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Fast and plain."""
    take_the_way_of(request.param, monkeypatch)
    return FORMS[request.param]


def take_the_way_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`referenced`: of keys that need a reference; `merged`: of keys beyond the range of a float; whatever they are."""
    if name == "merged":
        monkeypatch.setattr(causal_exp, "_SAFE_RANGE", -1.0)
    if name in ("merged", "referenced"):
        monkeypatch.setattr(causal_exp, "_is_moderate", lambda *_: False)


def check(ours: torch.Tensor, theirs: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    gradients = (torch.autograd.grad((x * weight).sum(), inputs, allow_unused=True) for x in (ours, theirs))
    for a, b, x in zip(*gradients, inputs, strict=True):
        torch.testing.assert_close(*(torch.zeros_like(x) if g is None else g for g in (a, b)), **TOLERANCE)


def by_sequence(plain: Callable[..., torch.Tensor], inputs: list[torch.Tensor], lengths: list[int]) -> torch.Tensor:
    return torch.cat([plain(*parts) for parts in zip(*(x.split(lengths) for x in inputs), strict=True)])


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("blindspot", [1, 2, 5, 40])
def test_values_and_gradients(rng: torch.Generator, form, lengths: list[int], chunk: int, blindspot: int) -> None:
    fast, plain = form
    segments = Segments(lengths)
    inputs = heads(rng, segments.n_tokens)
    ours = fast(*inputs, segments, chunk=chunk, blindspot=blindspot)
    check(ours, by_sequence(partial(plain, blindspot=blindspot), inputs, lengths), inputs)


@pytest.mark.parametrize("blindspot", [1, 3])
@pytest.mark.parametrize("chunk", [5, 64])
def test_turned_in_the_numerator_only(rng: torch.Generator, form, blindspot: int, chunk: int) -> None:
    fast, plain = form
    lengths = [9, 1, 33]
    segments = Segments(lengths)
    inputs = heads(rng, segments.n_tokens)
    rotation = torch.stack([reference.rotary_matrix(i, 6, ROTARY_BASE) for i in range(max(lengths))])
    ours = fast(*inputs, segments, chunk=chunk, blindspot=blindspot, turn=partial(rotate, segments=segments))

    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return plain(q, k, v, blindspot=blindspot, rotation=rotation[: len(q)])

    check(ours, by_sequence(one, inputs, lengths), inputs)


@pytest.mark.parametrize("blindspot", [1, 4])
@pytest.mark.parametrize("name", FORMS)
def test_pieces(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, name: str, blindspot: int) -> None:
    """Values and gradients, the range of the keys changing from piece to piece."""
    take_the_way_of(name, monkeypatch)
    inputs = heads(rng, 2 * 31)
    with torch.no_grad():
        inputs[1] *= torch.linspace(0.1, 3, 31, dtype=torch.float64).repeat(2)[:, None, None]
    whole = FORMS[name][0](*inputs, Segments([31, 31]), blindspot=blindspot)
    past = Past() if name == "linear" else PeakedPast()
    parts, at = [], 0
    for n in (6, 1, 1, 12, 4, 7):
        rows = [x.unflatten(0, (2, 31))[:, at : at + n].flatten(0, 1) for x in inputs]
        segments = Segments([n, n], offsets=[at, at])
        if name == "linear":
            out, past = causal_linear_attention(
                rows[0].exp(), rows[1].exp(), rows[2], segments, blindspot=blindspot, past=past
            )
        else:
            out, past = causal_exp_attention(*rows, segments, blindspot=blindspot, past=past)
        parts.append(out.unflatten(0, (2, n)))
        at += n
    check(torch.cat(parts, 1).flatten(0, 1), whole, inputs)


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("with_initial", [False, True])
def test_sums_before_by_either_way(rng: torch.Generator, lengths: list[int], with_initial: bool) -> None:
    """One chunk at a time, as on a CPU, and in a grid, as on other devices."""
    segments = Segments(lengths)
    chunks = chunk_states.causal_chunks(segments, 4)
    x = torch.randn(2, len(chunks.segment), 3, 5, generator=rng, dtype=torch.float64).requires_grad_()
    initial = torch.randn(2, len(lengths), 3, 5, generator=rng, dtype=torch.float64) * float(with_initial)
    initial.requires_grad_()
    one = chunk_states.sums_before(x, initial, segments, chunks, torch.float64)
    other = chunk_states._prefix_in_grid(x, initial, chunks, torch.float64)
    plain_before = torch.empty_like(x)
    for n, segment in enumerate(chunks.segment.tolist()):
        earlier = [m for m in range(n) if chunks.segment[m] == segment]
        plain_before = plain_before.index_fill(1, torch.tensor([n]), 0).index_add(
            1, torch.tensor([n]), (initial[:, segment] + x[:, earlier].sum(1))[:, None]
        )
    plain_total = initial + torch.zeros_like(initial).index_add(1, chunks.segment, x)
    weights = [torch.randn(y.shape, generator=rng, dtype=torch.float64) for y in one]
    gradients = []
    for before, total in (one, other, (plain_before, plain_total)):
        torch.testing.assert_close(before, plain_before)
        torch.testing.assert_close(total, plain_total)
        loss = (before * weights[0]).sum() + (total * weights[1]).sum()
        gradients.append(torch.autograd.grad(loss, (x, initial), retain_graph=True))
    for ours in gradients[:2]:
        for a, b in zip(ours, gradients[2], strict=True):
            torch.testing.assert_close(a, b)


def true_quotient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The definition in logarithms, for keys whose exponential is no float64."""
    logits = (q.double().log_softmax(-1)[:, None] + k.double()[None]).logsumexp(-1)
    seen = reference.causal.seen_by_blindspot(len(q), 1)
    weights = logits.masked_fill(~seen[..., None], -torch.inf).softmax(1)
    return torch.einsum("ijh,jhd->ihd", weights, v.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["rising", "falling", "mixed", "jump", "late"])
def test_keys_of_any_size(rng: torch.Generator, dtype: torch.dtype, case: str) -> None:
    n = 200
    q, k, v = (torch.randn(n, 2, 8, generator=rng).to(dtype) for _ in range(3))
    signs = {
        "rising": torch.linspace(-200, 200, n),
        "falling": torch.linspace(200, -200, n),
        "mixed": 200 * torch.randn(n, generator=rng).sign(),
        "jump": torch.where(torch.arange(n) < 70, -200.0, 200.0),
        "late": torch.where(torch.arange(n) < n - 1, 0.0, 200.0),
    }[case]
    k = (k.float() + signs[:, None, None]).to(dtype)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    ours = causal_exp_attention(*inputs, Segments([n]))[0]
    plain = true_quotient(*inputs)
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.03}
    torch.testing.assert_close(ours.double(), plain, **near)
    weight = torch.randn(plain.shape, generator=rng, dtype=torch.float64)
    expected = torch.autograd.grad((plain * weight).sum(), inputs)
    for a, b in zip(torch.autograd.grad((ours.double() * weight).sum(), inputs), expected, strict=True):
        assert a.isfinite().all()
        assert (a - b).float().norm() <= (1e-4 if dtype == torch.float32 else 0.03) * b.float().norm() + 1e-5


def test_channels_far_apart(rng: torch.Generator) -> None:
    """Keys of 100 in one channel and -100 in another, as a trained model may have: one reference a channel serves."""
    n = 300
    q, k, v = (torch.randn(n, 2, 8, generator=rng) for _ in range(3))
    k = k + torch.linspace(-100, 100, 8)
    torch.testing.assert_close(
        causal_exp_attention(q, k, v, Segments([n]))[0].double(), true_quotient(q, k, v), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_36_000_tokens(rng: torch.Generator, dtype: torch.dtype, kind: str) -> None:
    """Weights still add up to one at the end, and a shift of all values shows in full."""
    n = 36_000
    q, k = (torch.randn(n, 1, 16, generator=rng).to(dtype) for _ in range(2))
    v = 1 + 0.1 * torch.randn(n, 1, 16, generator=rng).to(dtype)
    if kind == "exponential":
        out = causal_exp_attention(q, k, v, Segments([n]))[0]
        weights = q[-3:].double().softmax(-1)[:, 0] @ k.double().exp()[:, 0].T
    else:
        out = causal_linear_attention(q.exp(), k.exp(), v, Segments([n]), eps=1e-6)[0]
        weights = q[-3:].double().exp()[:, 0] @ k.double().exp()[:, 0].T
    assert out.isfinite().all()
    weights = weights.tril(n - 3)
    expected = (weights / weights.sum(1, keepdim=True)) @ v.double()[:, 0]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.0}
    torch.testing.assert_close(out[-3:, 0].double(), expected, **tolerance)


def test_sums_stay_wide_under_autocast(rng: torch.Generator) -> None:
    """20,000 equal keys of weight one and a value of one: sums in bfloat16 would stop growing at 256."""
    ones = torch.ones(20_000, 1, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, past = causal_exp_attention(ones * 0, ones * 0, ones, Segments([20_000]), past=PeakedPast())
        linear_out, sums = causal_linear_attention(ones, ones, ones, Segments([20_000]), past=Past())
    for values, seen in ((out, past.seen), (linear_out, sums.seen)):
        assert seen.norm.dtype == torch.float32
        torch.testing.assert_close(seen.norm, torch.full_like(seen.norm, 20_000.0))
        torch.testing.assert_close(values, torch.ones_like(values), rtol=1e-5, atol=0)


def test_queries_that_read_nothing(rng: torch.Generator) -> None:
    """Zero weights give zero values and zero gradients, not NaN."""
    q, k, v = (torch.rand(10, 1, 4, generator=rng).requires_grad_() for _ in range(3))
    out = causal_linear_attention(q * 0, k, v * 1e6, Segments([10]))[0]
    assert (out == 0).all()
    for gradient in torch.autograd.grad((1e6 * out).sum(), (q, k, v)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("radius", [1, 4, 16, 50])
def test_window(rng: torch.Generator, lengths: list[int], radius: int) -> None:
    segments = Segments(lengths)
    inputs = heads(rng, segments.n_tokens)
    ours = local.window_attention(*inputs, segments, radius, causal=True)
    check(ours, by_sequence(partial(reference.causal_window_attention, radius=radius), inputs, lengths), inputs)
    with torch.no_grad():
        torch.testing.assert_close(
            local.window_attention(*inputs, segments, radius, causal=True), ours.detach(), **TOLERANCE
        )


def test_window_in_slabs(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments([90, 11, 70])
    inputs = heads(rng, segments.n_tokens)
    whole = local.window_attention(*inputs, segments, 4, causal=True)
    monkeypatch.setattr(local, "_BLOCKS_PER_SLAB", 5)
    torch.testing.assert_close(local.window_attention(*inputs, segments, 4, causal=True), whole, **TOLERANCE)


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("size", [3, 5, 7])
def test_conv(rng: torch.Generator, lengths: list[int], size: int) -> None:
    segments = Segments(lengths)
    x, weight, bias = (
        torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()
        for shape in ((segments.n_tokens, 4), (size, 4), (4,))
    )
    plain = torch.cat([reference.causal_depthwise_conv(part, weight, bias) for part in x.split(lengths)])
    check(local.depthwise_conv(x, weight, bias, segments, causal=True), plain, [x, weight, bias])
    with torch.no_grad():
        torch.testing.assert_close(local.depthwise_conv(x, weight, bias, segments, causal=True), plain, **TOLERANCE)


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 2, 7])
def test_token_shift(rng: torch.Generator, lengths: list[int], channels: int) -> None:
    segments = Segments(lengths)
    x = torch.randn(segments.n_tokens, channels, generator=rng, dtype=torch.float64).requires_grad_()
    check(local.causal_token_shift(x, segments)[0], by_sequence(reference.causal_token_shift, [x], lengths), [x])


def test_memories_lie_at_the_end() -> None:
    """Sequences of 0, 2 and 9 earlier rows, memories of 3: rows are numbered sequence * 100 + position."""
    offsets, lengths = [0, 2, 9], [2, 1, 4]
    memory = torch.tensor([[0, 0, 0], [0, 100, 101], [206, 207, 208]])
    x = torch.tensor([0, 1, 102, 209, 210, 211, 212])
    segments = Segments(lengths, offsets=offsets)
    longer = with_memory(x, memory, segments, 3)
    assert longer.tolist() == [0, 1, 100, 101, 102, *range(206, 213)]
    table = carry_table(segments, 3)
    assert table.segments.lengths == (2, 3, 7)
    assert torch.equal(longer[table.new], x)
    assert last_rows(longer, segments, 3).tolist() == [[0, 0, 1], [100, 101, 102], [210, 211, 212]]
