"""Encoders as ONNX files: the same weights in a padded form, for programs without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from protlat.errors import ConfigError, MissingExtraError
from protlat.files import atomic_path
from protlat.models import Encoder, ModelConfig
from protlat.nn.attention import AnyAttention, EfficientAttentionConfig, SoftmaxAttentionConfig, WindowAttentionConfig
from protlat.nn.attention.layer import AttentionLayer
from protlat.nn.norms import inverse_rms
from protlat.nn.positions import ROTARY_BASE, LearnedPositions, NoPositions

_KINDS = ("window", "efficient", "softmax")
_OPSET = 20


def why_not_exportable(config: ModelConfig) -> str | None:
    """What in these settings has no padded form; None when the model can be exported."""
    plain = ModelConfig()
    known = {
        "d_model", "n_layers", "head_dim", "attention", "attention_by_layer", "gate", "local_conv", "positions", "norm",
        "feed_forward", "dropout", "embedding_dim", "tie_output", "checkpoint_activations", "head",
    }  # fmt: skip
    for name in type(config).model_fields:
        if name not in known and getattr(config, name) != getattr(plain, name):
            return f"model.{name}={getattr(config, name)!r}"
    for layer in range(config.n_layers):
        for group in config.groups_of(layer):
            if group.kind not in _KINDS:
                return f"{group.kind} heads (layer {layer}); {', '.join(_KINDS)} can be exported"
            if isinstance(group, EfficientAttentionConfig) and group.rotary:
                return f"rotary efficient heads (layer {layer})"
    if config.gate.write != "none":
        return f"gate.write={config.gate.write}"
    if config.positions.kind not in ("none", "learned"):
        return f"positions.kind={config.positions.kind}"
    return None


class PaddedEncoder(nn.Module):
    """An encoder's function on padded batches, written with operations that ONNX has.

    Parameters
    ----------
    encoder : Encoder
        Its modules are shared, not copied.

    Raises
    ------
    ConfigError
        The model has a part without a padded form.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        reason = why_not_exportable(encoder.config)
        if reason is not None:
            raise ConfigError(f"this model cannot be exported to ONNX: {reason}")
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Last-layer vectors.

        Parameters
        ----------
        tokens : torch.Tensor, shape (B, L), int64
        mask : torch.Tensor, shape (B, L), bool
            True = token; padding stands behind the tokens.

        Returns
        -------
        torch.Tensor, shape (B, L, E)
            Zero in the padding.
        """
        encoder = self.encoder
        x = encoder.widen(encoder.embedding(tokens))
        if isinstance(encoder.positions, LearnedPositions):
            x = x + encoder.positions.table.weight[: x.shape[1]]
        else:
            assert isinstance(encoder.positions, NoPositions)
        for number, block in enumerate(encoder.blocks):
            x = x + self._attend(block.attention, number, block.attention_norm(x), mask)  # type: ignore[arg-type, operator]
            x = x + block.feed_forward(block.feed_forward_norm(x))  # type: ignore[operator]
        return encoder.final_norm(x) * mask.unsqueeze(-1)

    def _attend(self, layer: AttentionLayer, number: int, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        qkv = layer.project(x)
        if layer.conv_on == "qkv":
            qkv = self._convolve(layer, qkv, mask)
        q, k, v = qkv.chunk(3, dim=-1)
        if layer.conv_on == "v":
            v = self._convolve(layer, v, mask)
        q, k, v = (part.unflatten(-1, (layer.n_heads, layer.head_dim)) for part in (q, k, v))
        out, first = [], 0
        for group in self.encoder.config.groups_of(number):
            parts = (part[:, :, first : first + group.n_heads] for part in (q, k, v))
            out.append(_core(group)(*parts, mask, group))
            first += group.n_heads
        values = torch.cat(out, dim=2) if len(out) > 1 else out[0]
        if layer.output_size:
            assert layer.project_gates is not None
            gate = torch.sigmoid(layer.project_gates(x)).unflatten(-1, (layer.n_heads, layer.output_size))
            values = values * (gate * inverse_rms(values) if layer.gate.norm else gate)
        return layer.mix(values.flatten(2))

    @staticmethod
    def _convolve(layer: AttentionLayer, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert layer.conv is not None
        x = x * mask.unsqueeze(-1)
        weight = layer.conv.weight
        half, length = weight.shape[0] // 2, x.shape[1]
        around = F.pad(x, (0, 0, half, half))
        out = x + layer.conv.bias
        for tap in range(weight.shape[0]):
            out = out + around[:, tap : tap + length] * weight[tap]
        return out


def _core(group: AnyAttention) -> Callable[..., torch.Tensor]:
    cores: dict[str, Callable[..., torch.Tensor]] = {
        "window": _window, "efficient": _efficient, "softmax": _softmax,
    }  # fmt: skip
    return cores[group.kind]


def _softmax(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, group: SoftmaxAttentionConfig
) -> torch.Tensor:
    if group.rotary:
        q, k = _rotate(q), _rotate(k)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def _efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, group: EfficientAttentionConfig
) -> torch.Tensor:
    weights = k.masked_fill(~mask[:, :, None, None], -torch.inf).softmax(1)
    state = torch.einsum("blhm,blhd->bhmd", weights, v)
    return torch.einsum("blhm,bhmd->blhd", q.softmax(-1), state) * group.scale


def _window(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, group: WindowAttentionConfig
) -> torch.Tensor:
    """Blocks of `radius` queries against the three blocks of keys around them, as in `protlat.ops.local`."""
    if group.rotary:
        q, k = _rotate(q), _rotate(k)
    width, length, dim = group.radius, q.shape[1], q.shape[-1]
    n_blocks = (length + width - 1) // width
    tail = n_blocks * width - length

    def around(x: torch.Tensor) -> torch.Tensor:
        # (B, L, ...) -> (B, N, 3 W, ...)
        padding = [0, 0] * (x.dim() - 2) + [width, tail + width]
        blocks = F.pad(x, padding).unflatten(1, (n_blocks + 2, width))
        return torch.cat([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], dim=2)

    queries = F.pad(q, (0, 0, 0, 0, 0, tail)).unflatten(1, (n_blocks, width)) * dim**-0.5
    scores = torch.einsum("bnihd,bnjhd->bnhij", queries, around(k))
    offset = torch.arange(-width, 2 * width)[None, :] - torch.arange(width)[:, None]
    # Not -inf: rows of the padding see nothing, and a softmax over nothing is not a number.
    near = (offset.abs() <= width) & around(mask)[:, :, None, None, :]
    scores = torch.where(near, scores, torch.full_like(scores, -1e30))
    out = torch.einsum("bnhij,bnjhd->bnihd", scores.softmax(-1), around(v * mask[:, :, None, None]))
    return out.flatten(1, 2)[:, :length]


def _rotate(x: torch.Tensor) -> torch.Tensor:
    """`protlat.nn.positions.rotate` without complex numbers, which ONNX lacks: (B, L, H, D)."""
    dim = x.shape[-1]
    frequency = ROTARY_BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * frequency
    cosine, sine = angle.cos().float(), angle.sin().float()
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
    return turned.flatten(-2)


def export_onnx(encoder: Encoder, path: str | Path) -> None:
    """Write an encoder as an ONNX file: inputs ``tokens`` and ``mask`` (B, L), output ``vectors`` (B, L, E), any B and L.

    Parameters
    ----------
    encoder : Encoder
        In float32, on the CPU.
    path : path
        File to write.

    Raises
    ------
    ConfigError
        The model has a part that cannot be exported; the message says which.
    MissingExtraError
        onnx or onnxscript is not installed.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - what torch.onnx needs
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "onnx", "onnx", "export to ONNX") from None
    padded = PaddedEncoder(encoder).eval()
    # Any sizes but 1, which the exporter takes for a constant.
    tokens = torch.full((3, 300), encoder.alphabet.unk_id)
    mask = torch.arange(300)[None] < torch.tensor([300, 200, 150])[:, None]
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.onnx.export(
            padded, (tokens, mask), dynamo=True, opset_version=_OPSET, verbose=False,
            input_names=["tokens", "mask"], output_names=["vectors"],
            dynamic_shapes=(free, free),
        )  # fmt: skip
    assert program is not None
    model = program.model_proto
    for part in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        # The exporter leaves where each operation came from, with the paths of this computer.
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for given in model.graph.input:
        for size, name in zip(given.type.tensor_type.shape.dim, ("batch", "length"), strict=True):
            size.dim_param = name
    onnx.helper.set_model_props(
        model, {"tokens": json.dumps(list(encoder.alphabet.tokens)), "alphabet": encoder.alphabet.name}
    )
    onnx.checker.check_model(model)
    with atomic_path(path) as temporary:
        onnx.save_model(model, str(temporary))
