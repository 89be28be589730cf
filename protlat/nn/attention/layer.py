"""One attention layer: a fused projection, local convolution, gates, head groups of several kinds, the output mix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from protlat.nn.attention import AnyAttention
from protlat.nn.attention.forget import with_forget_gate
from protlat.nn.gate import GateConfig
from protlat.nn.local_conv import LocalConv, LocalConvConfig
from protlat.nn.norms import inverse_rms
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments


class AttentionLayer(nn.Module):
    """Self-attention whose heads are split between kinds.

    Parameters
    ----------
    d_model, head_dim : int
    groups : sequence of attention configs
        Kinds of heads, first to last; their `n_heads` add up to the layer's heads.
    gate : GateConfig
    local_conv : LocalConvConfig or None
    causal : bool
        Whether no token may see a later one.
    """

    def __init__(
        self,
        d_model: int,
        head_dim: int,
        groups: Sequence[AnyAttention],
        gate: GateConfig,
        local_conv: LocalConvConfig | None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        groups = [with_forget_gate(group, gate) for group in groups]
        self.head_dim = head_dim
        self.group_heads = [group.n_heads for group in groups]
        self.n_heads = n_heads = sum(self.group_heads)
        inner = n_heads * head_dim
        per_head = {"none": 0, "channel": head_dim, "head": 1, "seed": 0}
        self.gate = gate
        # What a token and head of each group is given beside q, k and v: a write gate, and what the kind itself wants.
        self.write_sizes = [per_head[gate.write] if group.takes_write_gate else 0 for group in groups]
        self.extra_sizes = [group.n_extra for group in groups]
        self.output_size = per_head[gate.output]
        self.gate_widths = [
            *(n * size for n, size in zip(self.group_heads, self.write_sizes, strict=True)),
            n_heads * self.output_size,
            *(n * size for n, size in zip(self.group_heads, self.extra_sizes, strict=True)),
        ]
        self.project = nn.Linear(d_model, 3 * inner, bias=False)
        # Apart from the projection: rows of 3 * inner + n_heads values would lie across cache lines, which makes
        # element-wise work on their parts up to six times slower.
        self.project_gates = nn.Linear(d_model, sum(self.gate_widths)) if any(self.gate_widths) else None
        self.cores = nn.ModuleList(group.build(head_dim, causal) for group in groups)
        for group, core in zip(groups, self.cores, strict=True):
            if gate.write == "seed" and group.takes_write_gate:
                core.seed_gate = True  # type: ignore[assignment]
        self.conv_on = "" if local_conv is None else local_conv.target
        self.conv = None
        if local_conv is not None:
            self.conv = LocalConv(inner if local_conv.target == "v" else 3 * inner, local_conv.size, causal)
        self.mix = nn.Linear(inner, d_model)

    def reset_gates(self) -> None:
        """Set the biases that gates start from; called after the general initialisation."""
        if self.project_gates is None:
            return
        n_groups = len(self.cores)
        biases = self.project_gates.bias.detach().split(self.gate_widths)
        for bias in biases[:n_groups]:
            nn.init.constant_(bias, self.gate.write_bias)
        for core, bias, heads in zip(self.cores, biases[n_groups + 1 :], self.group_heads, strict=True):
            if len(bias):
                # A kind that asks for extra values says where they start: (H, n) in place.
                core.start_extra(bias.view(heads, -1))  # type: ignore[operator]

    def forward(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        qkv = self.project(x)
        writes, output, extras = self._gates(x)
        memory = None if state is None else state.sub("conv")
        if self.conv is not None and self.conv_on == "qkv":
            qkv = self.conv(qkv, segments, memory)
        q, k, v = qkv.chunk(3, dim=-1)
        if self.conv is not None and self.conv_on == "v":
            v = self.conv(v, segments, memory)
        q, k, v = (part.unflatten(-1, (self.n_heads, self.head_dim)) for part in (q, k, v))
        out = []
        parts = zip(*(part.split(self.group_heads, dim=1) for part in (q, k, v)), strict=True)
        for number, (core, part) in enumerate(zip(self.cores, parts, strict=True)):
            memory = None if state is None else state.sub(f"cores.{number}")
            out.append(core(*part, segments, writes[number], extras[number], memory))
        values = out[0] if len(out) == 1 else torch.cat(out, dim=1)
        if output is not None:
            # A learned scale of the norm would only repeat what `mix` can do.
            values = values * (output * inverse_rms(values) if self.gate.norm else output)
        elif self.gate.head_norm:
            values = values * inverse_rms(values)
        return self.mix(values.flatten(1))

    def _gates(
        self, x: torch.Tensor
    ) -> tuple[list[torch.Tensor | None], torch.Tensor | None, list[torch.Tensor | None]]:
        """Write gates of each group, the output gate, extra values of each group; (T, H, n) or None each."""
        n_groups = len(self.cores)
        if self.project_gates is None:
            return [None] * n_groups, None, [None] * n_groups
        sizes = [*self.write_sizes, self.output_size, *self.extra_sizes]
        n_sigmoid = sum(self.gate_widths[: n_groups + 1])
        projected = self.project_gates(x)
        opened = torch.sigmoid(projected[:, :n_sigmoid] if n_sigmoid < projected.shape[1] else projected)
        parts = [
            *opened.split(self.gate_widths[: n_groups + 1], dim=-1),
            *projected[:, n_sigmoid:].split(self.gate_widths[n_groups + 1 :], dim=-1),
        ]
        shaped = [part.unflatten(-1, (-1, size)) if size else None for part, size in zip(parts, sizes, strict=True)]
        return shaped[:n_groups], shaped[n_groups], shaped[n_groups + 1 :]
