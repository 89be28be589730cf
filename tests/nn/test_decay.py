"""Decay and delta heads as parts of a model: settings, causal models, state, the forget gate, outside kernels."""

from __future__ import annotations

import math
import sys
import types

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError, MissingExtraError
from protlat.models import ModelConfig
from protlat.models.language_model import CausalLM
from protlat.nn.attention.decay import DecayAttentionConfig
from protlat.nn.attention.delta import DeltaAttentionConfig
from protlat.nn.attention.rates import DecayRates, unit_length
from protlat.nn.state import RecurrentState
from protlat.ops import fla
from protlat.ops.segments import Segments

EXACT = {"rtol": 1e-9, "atol": 1e-10}
_BASE = {"d_model": 24, "n_layers": 2, "head_dim": 8, "causal": True, "local_conv": None}
_DECAY = {"kind": "decay", "n_heads": 3, "shortest": 2, "longest": 30, "chunk": 8}
_DELTA = {"kind": "delta", "n_heads": 3, "shortest": 2, "longest": 30, "chunk": 8}
_MODELS = {
    "decay": {"attention": [_DECAY]},
    "decay-own": {"attention": [{**_DECAY, "diagonal": True, "no_decay_heads": 1}], "gate": {"head_norm": True}},
    "decay-learned": {"attention": [{**_DECAY, "decay": "learned"}], "gate": {"output": "channel", "write": "head"}},
    "decay-normalised": {"attention": [{**_DECAY, "feature_map": {"kind": "softmax"}, "normaliser": True}]},
    "forget": {"attention": [{"kind": "linear", "n_heads": 2, "chunk": 8}], "gate": {"forget": "head"}},
    "delta": {"attention": [{"kind": "delta", "n_heads": 3, "gated": False, "chunk": 8}], "gate": {"output": "head"}},
    "delta-gated": {"attention": [_DELTA], "gate": {"head_norm": True}},
    "delta-negative": {"attention": [{**_DELTA, "negative_eigenvalues": True}, {**_DECAY, "n_heads": 1}]},
    "delta-reference": {"attention": [{**_DELTA, "chunk": 32, "implementation": "reference"}]},
}
CAUSAL = {name: ModelConfig.parse({**_BASE, **options}) for name, options in _MODELS.items()}
EVERY = pytest.mark.parametrize("name", CAUSAL)


def build(name: str) -> CausalLM:
    torch.manual_seed(3)
    model = CausalLM(CAUSAL[name], PROTEIN).double().eval()
    with torch.no_grad():
        # Zero starts would hide faults.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return model


def residues(generator: torch.Generator, n: int) -> torch.Tensor:
    return torch.randint(4, 24, (n,), generator=generator)


@EVERY
def test_nothing_later_moves_a_token(rng: torch.Generator, name: str) -> None:
    """By perturbation, across a chunk's border and inside it, and by gradient."""
    model, tokens = build(name), residues(rng, 30)
    segments = Segments([22, 8])
    changed = tokens.clone()
    changed[13:22] = (changed[13:22] - 3) % 20 + 4
    with torch.no_grad():
        one, other = model(tokens, segments), model(changed, segments)
    torch.testing.assert_close(one[:13], other[:13], **EXACT)
    torch.testing.assert_close(one[22:], other[22:], **EXACT)
    assert (one[13:22] - other[13:22]).abs().amax(-1).min() > 1e-6
    embedded: list[torch.Tensor] = []
    model.encoder.embedding.register_forward_hook(lambda _m, _i, out: embedded.append(out.requires_grad_()) or out)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    gradient = torch.autograd.grad(model(tokens, segments)[12].sum(), embedded[0])[0]
    assert gradient[13:].abs().max() == 0
    assert gradient[:13].abs().amax(-1).min() > 0


@EVERY
def test_pieces_and_single_steps_equal_the_whole(rng: torch.Generator, name: str) -> None:
    model, lengths = build(name), [13, 5, 20]
    tokens = residues(rng, sum(lengths)).split(lengths)
    with torch.no_grad():
        whole = model(torch.cat(tokens), Segments(lengths)).split(lengths)
        state, offsets = RecurrentState(), [0, 0, 0]
        for sizes in ([2, 1, 9], *([[1, 1, 1]] * 3), [8, 1, 8]):
            piece = [x[at : at + n] for x, at, n in zip(tokens, offsets, sizes, strict=True)]
            logits = model(torch.cat(piece), Segments(sizes, offsets=offsets), state=state)
            expected = [x[at : at + n] for x, at, n in zip(whole, offsets, sizes, strict=True)]
            torch.testing.assert_close(logits, torch.cat(expected), **EXACT)
            state = state.next()
            offsets = [at + n for at, n in zip(offsets, sizes, strict=True)]


@EVERY
def test_gradients_match_finite_differences(rng: torch.Generator, name: str) -> None:
    model = build(name)
    tokens, segments = residues(rng, 20), Segments([12, 1, 7])
    parameters = list(model.parameters())
    loss = model(tokens, segments).log_softmax(-1)[:, 5].sum()
    gradients = torch.autograd.grad(loss, parameters)
    assert all(g.abs().sum() > 0 for g in gradients)
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in parameters]
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    step, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p += sign * step * d
            values.append(model(tokens, segments).log_softmax(-1)[:, 5].sum())
            for p, d in zip(parameters, direction, strict=True):
                p -= sign * step * d
    torch.testing.assert_close(slope, (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-6)


# Not the plain recurrence: it takes a step a token.
@pytest.mark.parametrize("name", [name for name in CAUSAL if not name.endswith("reference")])
def test_bfloat16_over_20_000_tokens(rng: torch.Generator, name: str) -> None:
    model = CausalLM(CAUSAL[name], PROTEIN).bfloat16().eval()
    with torch.no_grad():
        out = model.encoder(residues(rng, 20_000), Segments([20_000]))[2]
    assert out.isfinite().all()


@pytest.mark.parametrize("kind", ["fixed", "learned", "data"])
def test_rates_start_from_their_half_lives(kind: str) -> None:
    rates = DecayRates(4, kind, 16, 1024, no_decay_heads=1)
    x = torch.zeros(2, 4) if kind == "data" else None
    log_decay = rates(x, torch.zeros(1))
    expected = torch.tensor([-math.log(2) / 16, -math.log(2) / 128, -math.log(2) / 1024, 0])
    torch.testing.assert_close(log_decay, expected.expand_as(log_decay))
    assert log_decay[..., -1].abs().max() == 0


def test_data_rates_are_bounded() -> None:
    rates = DecayRates(1, "data", 16, 16)
    log_decay = rates(torch.tensor([[-1e4], [1e4]], dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16))
    assert log_decay.dtype == torch.float32
    assert log_decay.flatten().tolist() == [0, -5]


def test_a_new_model_starts_from_the_half_lives() -> None:
    values = {"attention": [{**_DECAY, "diagonal": True, "shortest": 8, "longest": 8}]}
    layer = CausalLM(ModelConfig.parse({**_BASE, **values}), PROTEIN).encoder.blocks[0].attention
    bias = layer.project_gates.bias.view(3, 2)
    assert bias.tolist() == [[0, 1]] * 3


def test_unit_length() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    unit = unit_length(x)
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert torch.autograd.grad(unit.sum(), x)[0].isfinite().all()
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(unit_length, x)
    assert torch.autograd.gradcheck(lambda x: unit_length(x) * x.square().sum(), x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"diagonal": True}, {"feature_map": {"kind": "elu"}, "normaliser": True}])
def test_reference_implementation_agrees(rng: torch.Generator, causal: bool, options: dict[str, object]) -> None:
    q, k, v, extra = (torch.randn(30, 2, n, generator=rng, dtype=torch.float64) for n in (4, 4, 4, 2))
    out = []
    for implementation in ("reference", "auto"):
        config = DecayAttentionConfig.parse({"n_heads": 2, "implementation": implementation, **options})
        core = config.build(4, causal)
        out.append(core(q, k, v, Segments([20, 10]), extra=extra[..., : config.n_extra]))
    torch.testing.assert_close(*out, **EXACT)


@pytest.mark.parametrize("kind", ["decay", "delta"])
def test_autocast_leaves_wide_sums_alone(rng: torch.Generator, kind: str) -> None:
    """Values and gradients of the heads are those without autocast, where their input is float32."""
    config = DecayAttentionConfig(n_heads=2) if kind == "decay" else DeltaAttentionConfig(n_heads=2)
    core, segments = config.build(8, True), Segments([100, 1, 70])
    q, k, v, extra = (torch.randn(171, 2, n, generator=rng).requires_grad_() for n in (8, 8, 8, config.n_extra))
    results = []
    for on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            out = core(q, k, v, segments, None, extra)
        results.append([out, *torch.autograd.grad(out.sum(), [q, k, v, extra])])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


REFUSED = {
    "no_decay_heads 3 leaves none of 3 decay heads": {"attention": [{**_DECAY, "no_decay_heads": 3}]},
    "set feature_map to elu, relu or softmax": {"attention": [{**_DECAY, "normaliser": True}]},
    "cannot be normalised; set normaliser: false": {
        "attention": [{**_DECAY, "normaliser": True, "diagonal": True, "feature_map": {"kind": "elu"}}]
    },
    "fla has none; use implementation: chunked": {
        "attention": [{**_DECAY, "normaliser": True, "feature_map": {"kind": "elu"}, "implementation": "fla"}]
    },
    "is below the shortest": {"attention": [{**_DECAY, "longest": 1}]},
    "use kind decay, or causal: true": {"attention": [_DELTA], "causal": False},
    "act with gated: true only": {"attention": [{**_DELTA, "gated": False}]},
    "gate.write acts on global heads": {"attention": [_DELTA], "gate": {"write": "head"}},
    "decay heads have no seed gate": {"attention": [_DECAY], "gate": {"write": "seed"}},
    "gate.forget acts on linear heads, but layer 0 has only decay; use kind decay there": {
        "attention": [_DECAY], "gate": {"forget": "head"}
    },
    "rotary does not act with gate.forget": {
        "attention": [{"kind": "linear", "n_heads": 2, "rotary": True}], "gate": {"forget": "head"}
    },
    "blindspot does not act with gate.forget": {
        "attention": [{"kind": "linear", "n_heads": 2, "blindspot": 4}], "gate": {"forget": "head"}
    },
    "write: seed does not act on heads with a forget gate": {"gate": {"forget": "head", "write": "seed"}},
    "with one, gate.norm": {"gate": {"head_norm": True, "output": "head"}},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_cannot_act_are_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.parse({**_BASE, **REFUSED[message]})


def test_reference_keeps_no_state(rng: torch.Generator) -> None:
    core = DecayAttentionConfig(n_heads=1, decay="fixed", implementation="reference").build(4, True)
    x = torch.randn(3, 1, 4, generator=rng)
    with pytest.raises(ConfigError, match="use implementation: chunked"):
        core(x, x, x, Segments([3]), state=RecurrentState())


@pytest.mark.parametrize("config", [DecayAttentionConfig, DeltaAttentionConfig])
def test_missing_kernels_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, config: type[DecayAttentionConfig]
) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(MissingExtraError, match=r"implementation: fla needs .* pip install 'protlat\[fla\]'"):
        config(n_heads=1, implementation="fla").build(4, True)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor | float | bool | None]:
    """A stand-in for the package, which keeps what it is given and computes the recurrence."""
    given: dict[str, torch.Tensor | float | bool | None] = {}

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor | None = None,
        beta: torch.Tensor | None = None,
        *,
        scale: float,
        initial_state: torch.Tensor | None,
        output_final_state: bool,
        cu_seqlens: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given.update(q=q, g=g, beta=beta, scale=scale, cu_seqlens=cu_seqlens, output_final_state=output_final_state)
        _, _, n_heads, dim = q.shape
        out, ends = torch.zeros_like(v), []
        for number, (start, stop) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
            begin = initial_state
            state = q.new_zeros(n_heads, dim, dim, dtype=torch.float32) if begin is None else begin[number]
            for i in range(start, stop):
                if g is not None:
                    state = state * g[0, i].exp()[:, None, None]
                key, value = k[0, i].float(), v[0, i].float()
                if beta is not None:
                    value = beta[0, i, :, None].float() * (value - torch.einsum("hm,hmd->hd", key, state))
                state = state + key[..., None] * value[:, None]
                out[0, i] = torch.einsum("hm,hmd->hd", q[0, i].float() * scale, state).to(out.dtype)
            ends.append(state)
        return out, torch.stack(ends)

    for module, name in (
        ("simple_gla", "chunk_simple_gla"),
        ("delta_rule", "chunk_delta_rule"),
        ("gated_delta_rule", "chunk_gated_delta_rule"),
    ):
        stand_in = types.ModuleType(f"fla.ops.{module}")
        setattr(stand_in, name, run)
        monkeypatch.setitem(sys.modules, f"fla.ops.{module}", stand_in)
    for package in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setattr(fla, "require_cuda", lambda device: None)
    return given


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("decay", ["fixed", "data"])
def test_outside_decay_kernels_are_called_rightly(
    rng: torch.Generator, kernels: dict[str, torch.Tensor], causal: bool, diagonal: bool, decay: str
) -> None:
    q, k, v, extra = (torch.randn(30, 2, n, generator=rng) for n in (4, 4, 4, 2))
    segments = Segments([20, 1, 9])
    settings = {"n_heads": 2, "diagonal": diagonal, "decay": decay, "shortest": 2, "longest": 9}
    configs = [DecayAttentionConfig.parse({**settings, "implementation": how}) for how in ("fla", "chunked")]
    inputs = (q, k, v, segments, None, extra[..., : configs[0].n_extra] if configs[0].n_extra else None)
    ours, theirs = (config.build(4, causal)(*inputs) for config in configs)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert kernels["q"].shape == (1, 30, 2, 4)
    assert kernels["g"].shape == (1, 30, 2)
    assert kernels["g"].dtype == torch.float32
    assert kernels["cu_seqlens"].tolist() == [0, 20, 21, 30]
    assert kernels["scale"] == 1
    if causal:
        states = [RecurrentState(), RecurrentState()]
        for config, state in zip(configs, states, strict=True):
            config.build(4, True)(*inputs, state)
        torch.testing.assert_close(states[0].after["values"], states[1].after["values"], rtol=1e-4, atol=1e-5)
        after = [config.build(4, True)(*inputs, state.next()) for config, state in zip(configs, states, strict=True)]
        torch.testing.assert_close(*after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_outside_delta_kernels_are_called_rightly(
    rng: torch.Generator, kernels: dict[str, torch.Tensor], gated: bool
) -> None:
    q, k, v, extra = (torch.randn(30, 2, n, generator=rng).bfloat16() for n in (4, 4, 4, 1 + gated))
    configs = [DeltaAttentionConfig(n_heads=2, gated=gated, implementation=how) for how in ("fla", "chunked")]
    ours, theirs = (config.build(4, True)(q, k, v, Segments([20, 10]), None, extra) for config in configs)
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)
    assert kernels["beta"].shape == (1, 30, 2)
    assert (kernels["g"] is not None) == gated
    with pytest.raises(ConfigError, match="no delta rule in float32; run in bf16, or use implementation: chunked"):
        configs[0].build(4, True)(q.float(), k.float(), v.float(), Segments([20, 10]), None, extra.float())


def test_outside_kernels_need_cuda() -> None:
    with pytest.raises(ConfigError, match="runs on CUDA devices only, not on cpu; use implementation: chunked"):
        fla.require_cuda(torch.device("cpu"))
