"""One attention layer: a fused projection, local convolution, gates, head groups of several kinds, the output mix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from protlat.nn.attention import POOLED_KINDS, AnyAttention
from protlat.nn.gate import GateConfig
from protlat.nn.local_conv import LocalConv, LocalConvConfig
from protlat.nn.norms import inverse_rms
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
    """

    def __init__(
        self,
        d_model: int,
        head_dim: int,
        groups: Sequence[AnyAttention],
        gate: GateConfig,
        local_conv: LocalConvConfig | None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.group_heads = [group.n_heads for group in groups]
        self.n_heads = n_heads = sum(self.group_heads)
        inner = n_heads * head_dim
        self.is_pooled = [group.kind in POOLED_KINDS for group in groups]
        self.pooled_heads = sum(n for n, pooled in zip(self.group_heads, self.is_pooled, strict=True) if pooled)
        per_head = {"none": 0, "channel": head_dim, "head": 1}
        self.gate = gate
        self.gate_widths = [self.pooled_heads * per_head[gate.write], n_heads * per_head[gate.output]]
        self.gate_sizes = [per_head[gate.write], per_head[gate.output]]
        self.project = nn.Linear(d_model, 3 * inner, bias=False)
        # Apart from the projection: rows of 3 * inner + n_heads values would lie across cache lines, which makes
        # element-wise work on their parts up to six times slower.
        self.project_gates = nn.Linear(d_model, sum(self.gate_widths)) if any(self.gate_widths) else None
        self.cores = nn.ModuleList(group.build(head_dim) for group in groups)
        self.conv_on = "" if local_conv is None else local_conv.target
        self.conv = None
        if local_conv is not None:
            self.conv = LocalConv(inner if local_conv.target == "v" else 3 * inner, local_conv.size)
        self.mix = nn.Linear(inner, d_model)

    def reset_gates(self) -> None:
        """Set the biases that gates start from; called after the general initialisation."""
        if self.project_gates is not None:
            nn.init.constant_(self.project_gates.bias[: self.gate_widths[0]], self.gate.write_bias)

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        qkv = self.project(x)
        write, output = None, None
        if self.project_gates is not None:
            gates = torch.sigmoid(self.project_gates(x)).split(self.gate_widths, dim=-1)
            write, output = (
                g.unflatten(-1, (-1, w)) if w else None for g, w in zip(gates, self.gate_sizes, strict=True)
            )
        if self.conv is not None and self.conv_on == "qkv":
            qkv = self.conv(qkv, segments)
        q, k, v = qkv.chunk(3, dim=-1)
        if self.conv is not None and self.conv_on == "v":
            v = self.conv(v, segments)
        q, k, v = (part.unflatten(-1, (self.n_heads, self.head_dim)) for part in (q, k, v))
        values = self._attend(q, k, v, segments, write)
        if output is not None:
            # A learned scale of the norm would only repeat what `mix` can do.
            values = values * (output * inverse_rms(values) if self.gate.norm else output)
        return self.mix(values.flatten(1))

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        write_gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """(T, H, D) each -> (T, H, D): every group of heads by its own core."""
        out = []
        first_pooled = 0
        parts = zip(*(x.split(self.group_heads, dim=1) for x in (q, k, v)), strict=True)
        for core, pooled, part in zip(self.cores, self.is_pooled, parts, strict=True):
            gate = None
            if pooled and write_gate is not None:
                gate = write_gate.narrow(1, first_pooled, part[0].shape[1])
                first_pooled += part[0].shape[1]
            out.append(core(*part, segments, gate))
        return out[0] if len(out) == 1 else torch.cat(out, dim=1)
