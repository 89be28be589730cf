"""The attention layer of every variant against a plain composition of the definitions, one sequence at a time."""

from __future__ import annotations

import pytest
import torch

from protlat.models import ModelConfig
from protlat.nn.attention import AnyAttention
from protlat.nn.attention.forget import with_forget_gate
from protlat.nn.attention.layer import AttentionLayer
from protlat.nn.positions import ROTARY_BASE
from protlat.ops import reference
from protlat.ops.banded import ACTIVATIONS
from protlat.ops.segments import Segments
from tests.models.plain_decay import plain_decay, plain_delta
from tests.models.variants import CAUSAL, VARIANTS

LENGTHS = [9, 1, 20]


def plain_core(
    group: AnyAttention,
    core: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor | None,
    extra: torch.Tensor | None,
    config: ModelConfig,
) -> torch.Tensor:
    """One kind of heads on one sequence, (L, H, D)."""
    if group.kind == "decay":
        return plain_decay(group, core, q, k, v, gate, extra, config.causal)
    if group.kind == "linformer":
        maps = core.maps
        return reference.linformer_attention(q, k, v, maps.keys, maps.keys if maps.values is None else maps.values)
    if group.kind == "delta":
        return plain_delta(group, q, k, v, extra)
    turn = torch.stack([reference.rotary_matrix(i, q.shape[-1], ROTARY_BASE) for i in range(len(q))])

    def turned(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("imn,ihn->ihm", turn, x) if group.rotary else x

    if group.kind in ("linear", "efficient"):
        if group.rotary == "before":
            q, k = turned(q), turned(k)
        return plain_global(group, q, k, v, gate, turn if group.rotary is True else None, config)
    if config.causal and group.kind == "window":
        return reference.causal_window_attention(turned(q), turned(k), v, group.radius)
    if config.causal and group.kind == "softmax":
        return reference.causal_softmax_attention(turned(q), turned(k), v)
    if group.kind == "window":
        return reference.window_attention(turned(q), turned(k), v, group.radius)
    if group.kind == "banded":
        return reference.banded_attention(
            turned(q), turned(k), v, core.taps.expand(-1, group.n_heads, -1), group.radius,
            normalise=group.normalise, activation=ACTIVATIONS.get(group.activation), scale=group.scale,
            remask_output=group.remask_output, causal=config.causal,
        )  # fmt: skip
    return reference.softmax_attention(turned(q), turned(k), v)


def plain_global(
    group: AnyAttention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor | None,
    rotation: torch.Tensor | None,
    config: ModelConfig,
) -> torch.Tensor:
    """Kinds linear and efficient."""
    seed = config.gate.write == "seed"
    if group.kind == "linear":
        phi = group.feature_map.build()
        features = phi(k) if gate is None else phi(k) * gate
        features = features * features.sigmoid() if seed else features
        if config.causal:
            return reference.causal_linear_attention(phi(q), features, v, group.blindspot, rotation)
        return reference.linear_attention(phi(q), features, v, rotation)
    if config.causal:
        return group.scale * reference.causal_exp_attention(q, k, v, group.blindspot, rotation, gate)
    if rotation is None and not seed:
        return group.scale * reference.efficient_attention(q, k, v, gate)
    features = k.softmax(0)
    features_q, features = q.softmax(-1), features * features.sigmoid() if seed else features
    if rotation is not None:
        features_q, features = (torch.einsum("imn,ihn->ihm", rotation, x) for x in (features_q, features))
    weights = torch.einsum("ihd,jhd->hij", features_q, features)
    return group.scale * torch.einsum("hij,jhd->ihd", weights, v)


def plain_layer(layer: AttentionLayer, config: ModelConfig, number: int, x: torch.Tensor) -> torch.Tensor:
    """The whole layer on one sequence, (L, E)."""
    qkv = x @ layer.project.weight.T
    inner = qkv.shape[1] // 3
    if config.local_conv is not None:
        start = 0 if config.local_conv.target == "qkv" else 2 * inner
        conv = reference.causal_depthwise_conv if config.causal else reference.depthwise_conv
        moved = conv(qkv[:, start:], layer.conv.weight, layer.conv.bias)
        qkv = torch.cat([qkv[:, :start], moved], 1)
    q, k, v = (part.unflatten(1, (-1, config.head_dim)) for part in qkv.split(inner, 1))
    write = output = None
    extras = [None] * len(layer.cores)
    if layer.project_gates is not None:
        projected = x @ layer.project_gates.weight.T + layer.project_gates.bias
        gates = torch.sigmoid(projected)
        n_groups = len(layer.cores)
        parts = gates.split(layer.gate_widths, 1)
        write, output = parts[:n_groups], parts[n_groups]
        extras = projected.split(layer.gate_widths, 1)[n_groups + 1 :]
    out, head = [], 0
    for index, group in enumerate(config.groups_of(number)):
        part = slice(head, head + group.n_heads)
        group = with_forget_gate(group, config.gate)
        gate = None
        if group.takes_write_gate and config.gate.write not in ("none", "seed"):
            gate = write[index].unflatten(1, (group.n_heads, -1))
        extra = extras[index].unflatten(1, (group.n_heads, -1)) if group.n_extra else None
        out.append(plain_core(group, layer.cores[index], q[:, part], k[:, part], v[:, part], gate, extra, config))
        head += group.n_heads
    values = torch.cat(out, 1)
    if config.gate.head_norm:
        values = values / (values.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    if config.gate.output != "none":
        if config.gate.norm:
            values = values / (values.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        values = values * output.unflatten(1, (layer.n_heads, -1))
    return values.flatten(1) @ layer.mix.weight.T + layer.mix.bias


@pytest.mark.parametrize("name", [*VARIANTS, *(f"causal {name}" for name in CAUSAL)])
@pytest.mark.parametrize("number", [0, 1])
def test_layer_is_the_composition_of_its_definitions(rng: torch.Generator, name: str, number: int) -> None:
    config = CAUSAL[name.removeprefix("causal ")] if name.startswith("causal ") else VARIANTS[name]
    groups = config.groups_of(number)
    layer = AttentionLayer(
        config.d_model, config.head_dim, groups, config.gate, config.local_conv, config.causal
    ).double()
    parameters = list(layer.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    x = torch.randn(sum(LENGTHS), config.d_model, generator=rng, dtype=torch.float64).requires_grad_()
    ours = layer(x, Segments(LENGTHS))
    theirs = torch.cat([plain_layer(layer, config, number, part) for part in x.split(LENGTHS)])
    # The relative floor of linear heads (1e-6) is not part of the definition.
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-5} if any(g.kind == "linear" for g in groups) else {"rtol": 1e-8, "atol": 1e-9}
    )
    torch.testing.assert_close(ours, theirs, **tolerance)
    weight = torch.randn(ours.shape, generator=rng, dtype=torch.float64)
    ours_grad = torch.autograd.grad((ours * weight).sum(), [x, *parameters])
    theirs_grad = torch.autograd.grad((theirs * weight).sum(), [x, *parameters])
    for a, b in zip(ours_grad, theirs_grad, strict=True):
        torch.testing.assert_close(a, b, **{"rtol": tolerance["rtol"], "atol": 100 * tolerance["atol"]})
