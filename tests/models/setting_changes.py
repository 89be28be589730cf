"""For every setting of a model: where it is at its default, and a value that must change something there."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]
SMALL: Values = {
    "d_model": 12,
    "n_layers": 2,
    "head_dim": 6,
    "attention": [{"kind": "window", "n_heads": 2, "radius": 3}],
    "feed_forward": {"kind": "gelu"},
}


def model_with(**parts: Any) -> Values:
    return {**SMALL, **parts}


def heads(kind: str, **parts: Any) -> Values:
    return model_with(attention=[{"kind": kind, "n_heads": 2}], **parts)


EFFICIENT, LINEAR = heads("efficient"), heads("linear")
CAUSAL_EFFICIENT = heads("efficient", causal=True)
_BANDED = model_with(attention=[{"kind": "banded", "n_heads": 2, "radius": 4}])
_BANDED_ROUNDS = model_with(attention=[{"kind": "banded", "n_heads": 2, "radius": 4, "rounds": 2}])
_BANDED_PLAIN = model_with(attention=[{"kind": "banded", "n_heads": 2, "radius": 4, "normalise": "none"}])
DECAY, DELTA = heads("decay"), heads("delta", causal=True)
_DECAY_MAPPED = model_with(attention=[{"kind": "decay", "n_heads": 2, "feature_map": {"kind": "elu"}}])
_LINFORMER = model_with(attention=[{"kind": "linformer", "n_heads": 2, "max_length": 40, "k": 3}])
_MEMORY = model_with(feed_forward={"kind": "product_key", "n_heads": 2, "n_keys": 5, "top_k": 3, "key_dim": 4})
_CONVOLVED = model_with(local_conv={"size": 3})
_GATED = model_with(attention=[{"kind": "efficient", "n_heads": 2}], gate={"write": "head", "output": "head"})
_AXIAL_BLOCK = model_with(axial_block={"width": 4})


def reading(kind: str, **parts: Any) -> Values:
    return model_with(context={"kind": kind, "n_heads": 2, **parts})


_LINFORMER_CONTEXT = reading("linformer", max_length=30, k=3)

# (class, field): (settings, dotted name, value). How it acts is one of: "shapes" (weights come, go or change size),
# "start" (other first values of as many weights), "values" (other results with the same weights), "training" (other
# results with the same weights in training mode alone), "reach" (other lengths are refused).
CHANGES: dict[tuple[str, str], tuple[Values, str, Any, str]] = {
    ("ModelConfig", "d_model"): (SMALL, "d_model", 18, "shapes"),
    ("ModelConfig", "n_layers"): (SMALL, "n_layers", 3, "shapes"),
    ("ModelConfig", "head_dim"): (SMALL, "head_dim", 8, "shapes"),
    ("ModelConfig", "attention"): (SMALL, "attention", [{"kind": "softmax", "n_heads": 2}], "values"),
    ("ModelConfig", "attention_by_layer"): (
        SMALL, "attention_by_layer", {1: [{"kind": "softmax", "n_heads": 2}]}, "values",
    ),
    ("ModelConfig", "causal"): (SMALL, "causal", True, "values"),
    ("ModelConfig", "gate"): (SMALL, "gate", {"output": "head"}, "shapes"),
    ("ModelConfig", "local_conv"): (SMALL, "local_conv", {"size": 5}, "shapes"),
    ("ModelConfig", "token_shift"): (SMALL, "token_shift", True, "values"),
    ("ModelConfig", "positions"): (SMALL, "positions", {"kind": "sinusoidal"}, "values"),
    ("ModelConfig", "norm"): (SMALL, "norm", "rms", "shapes"),
    ("ModelConfig", "feed_forward"): (SMALL, "feed_forward", {"kind": "glu"}, "shapes"),
    ("ModelConfig", "feed_forward_by_layer"): (SMALL, "feed_forward_by_layer", {0: {"kind": "glu"}}, "shapes"),
    ("ModelConfig", "axial_block"): (SMALL, "axial_block", {"width": 3}, "shapes"),
    ("ModelConfig", "context"): (SMALL, "context", {"kind": "softmax", "n_heads": 1}, "shapes"),
    ("ModelConfig", "dropout"): (SMALL, "dropout", {"residual": 0.5}, "training"),
    ("ModelConfig", "embedding_dim"): (SMALL, "embedding_dim", 5, "shapes"),
    ("ModelConfig", "tie_output"): (SMALL, "tie_output", False, "shapes"),
    ("ModelConfig", "head"): (SMALL, "head", "plain", "shapes"),
    ("ModelConfig", "reversible"): (SMALL, "reversible", True, "values"),
    ("DropoutConfig", "embedding"): (SMALL, "dropout.embedding", 0.5, "training"),
    ("DropoutConfig", "residual"): (SMALL, "dropout.residual", 0.5, "training"),
    ("DropoutConfig", "attention_layer"): (SMALL, "dropout.attention_layer", 0.5, "training"),
    ("DropoutConfig", "feed_forward"): (SMALL, "dropout.feed_forward", 0.5, "training"),
    ("WindowAttentionConfig", "n_heads"): (SMALL, "attention.0.n_heads", 3, "shapes"),
    ("WindowAttentionConfig", "radius"): (SMALL, "attention.0.radius", 4, "values"),
    ("WindowAttentionConfig", "rotary"): (SMALL, "attention.0.rotary", False, "values"),
    ("WindowAttentionConfig", "dropout"): (SMALL, "attention.0.dropout", 0.5, "training"),
    ("SoftmaxAttentionConfig", "n_heads"): (heads("softmax"), "attention.0.n_heads", 3, "shapes"),
    ("SoftmaxAttentionConfig", "rotary"): (heads("softmax"), "attention.0.rotary", False, "values"),
    ("SoftmaxAttentionConfig", "dropout"): (heads("softmax"), "attention.0.dropout", 0.5, "training"),
    ("EfficientAttentionConfig", "n_heads"): (EFFICIENT, "attention.0.n_heads", 3, "shapes"),
    ("EfficientAttentionConfig", "rotary"): (EFFICIENT, "attention.0.rotary", True, "values"),
    ("EfficientAttentionConfig", "blindspot"): (CAUSAL_EFFICIENT, "attention.0.blindspot", 3, "values"),
    ("EfficientAttentionConfig", "scale"): (EFFICIENT, "attention.0.scale", 0.5, "values"),
    ("LinearAttentionConfig", "n_heads"): (LINEAR, "attention.0.n_heads", 3, "shapes"),
    ("LinearAttentionConfig", "rotary"): (LINEAR, "attention.0.rotary", "before", "values"),
    ("LinearAttentionConfig", "blindspot"): (heads("linear", causal=True), "attention.0.blindspot", 3, "values"),
    ("LinearAttentionConfig", "feature_map"): (LINEAR, "attention.0.feature_map", {"kind": "softmax"}, "values"),
    ("LinearAttentionConfig", "eps"): (LINEAR, "attention.0.eps", 0.1, "values"),
    ("DecayAttentionConfig", "n_heads"): (DECAY, "attention.0.n_heads", 3, "shapes"),
    ("DecayAttentionConfig", "shortest"): (DECAY, "attention.0.shortest", 2.0, "values"),
    ("DecayAttentionConfig", "longest"): (DECAY, "attention.0.longest", 20.0, "values"),
    ("DecayAttentionConfig", "decay"): (DECAY, "attention.0.decay", "learned", "shapes"),
    ("DecayAttentionConfig", "no_decay_heads"): (DECAY, "attention.0.no_decay_heads", 1, "values"),
    ("DecayAttentionConfig", "feature_map"): (DECAY, "attention.0.feature_map", {"kind": "relu"}, "values"),
    ("DecayAttentionConfig", "normalise"): (DECAY, "attention.0.normalise", "none", "values"),
    ("DecayAttentionConfig", "normaliser"): (_DECAY_MAPPED, "attention.0.normaliser", True, "values"),
    ("DecayAttentionConfig", "diagonal"): (DECAY, "attention.0.diagonal", True, "shapes"),
    ("DeltaAttentionConfig", "n_heads"): (DELTA, "attention.0.n_heads", 3, "shapes"),
    ("DeltaAttentionConfig", "shortest"): (DELTA, "attention.0.shortest", 2.0, "values"),
    ("DeltaAttentionConfig", "longest"): (DELTA, "attention.0.longest", 20.0, "values"),
    ("DeltaAttentionConfig", "gated"): (DELTA, "attention.0.gated", False, "shapes"),
    ("DeltaAttentionConfig", "negative_eigenvalues"): (DELTA, "attention.0.negative_eigenvalues", True, "values"),
    ("LinformerAttentionConfig", "n_heads"): (_LINFORMER, "attention.0.n_heads", 3, "shapes"),
    ("LinformerAttentionConfig", "max_length"): (_LINFORMER, "attention.0.max_length", 50, "shapes"),
    ("LinformerAttentionConfig", "k"): (_LINFORMER, "attention.0.k", 4, "shapes"),
    ("LinformerAttentionConfig", "sharing"): (_LINFORMER, "attention.0.sharing", "layerwise", "shapes"),
    ("LinformerAttentionConfig", "dropout"): (_LINFORMER, "attention.0.dropout", 0.5, "training"),
    ("BandedAttentionConfig", "n_heads"): (_BANDED, "attention.0.n_heads", 3, "shapes"),
    ("BandedAttentionConfig", "radius"): (_BANDED, "attention.0.radius", 5, "values"),
    ("BandedAttentionConfig", "rounds"): (_BANDED, "attention.0.rounds", 2, "shapes"),
    ("BandedAttentionConfig", "taps"): (_BANDED, "attention.0.taps", 3, "shapes"),
    ("BandedAttentionConfig", "shared_taps"): (_BANDED, "attention.0.shared_taps", True, "shapes"),
    ("BandedAttentionConfig", "normalise"): (_BANDED, "attention.0.normalise", "none", "values"),
    ("BandedAttentionConfig", "activation"): (_BANDED_ROUNDS, "attention.0.activation", "tanh", "values"),
    ("BandedAttentionConfig", "scale"): (_BANDED, "attention.0.scale", False, "values"),
    ("BandedAttentionConfig", "rotary"): (_BANDED, "attention.0.rotary", False, "values"),
    ("BandedAttentionConfig", "remask_output"): (_BANDED_PLAIN, "attention.0.remask_output", False, "values"),
    ("GateConfig", "write"): (EFFICIENT, "gate.write", "seed", "values"),
    ("GateConfig", "output"): (SMALL, "gate.output", "channel", "shapes"),
    ("GateConfig", "norm"): (_GATED, "gate.norm", False, "values"),
    ("GateConfig", "forget"): (LINEAR, "gate.forget", "head", "shapes"),
    ("GateConfig", "head_norm"): (SMALL, "gate.head_norm", True, "values"),
    ("GateConfig", "write_bias"): (_GATED, "gate.write_bias", -1.0, "start"),
    ("LocalConvConfig", "size"): (_CONVOLVED, "local_conv.size", 5, "shapes"),
    ("LocalConvConfig", "target"): (_CONVOLVED, "local_conv.target", "qkv", "shapes"),
    ("SinusoidalConfig", "amplitude"): (
        model_with(positions={"kind": "sinusoidal"}), "positions.amplitude", 1.0, "values",
    ),
    ("LearnedConfig", "max_length"): (
        model_with(positions={"kind": "learned", "max_length": 40}), "positions.max_length", 50, "shapes",
    ),
    ("AxialConfig", "max_length"): (
        model_with(positions={"kind": "axial", "max_length": 40, "width": 4}), "positions.max_length", 50, "shapes",
    ),
    ("AxialConfig", "width"): (
        model_with(positions={"kind": "axial", "max_length": 40, "width": 4}), "positions.width", 5, "shapes",
    ),
    ("GeluConfig", "expansion"): (SMALL, "feed_forward.expansion", 2.0, "shapes"),
    ("GeluConfig", "bias"): (SMALL, "feed_forward.bias", False, "shapes"),
    ("GluConfig", "expansion"): (model_with(feed_forward={"kind": "glu"}), "feed_forward.expansion", 2.0, "shapes"),
    ("GluConfig", "bias"): (model_with(feed_forward={"kind": "glu"}), "feed_forward.bias", False, "shapes"),
    ("SwigluConfig", "expansion"): (
        model_with(feed_forward={"kind": "swiglu"}), "feed_forward.expansion", 4.0, "shapes",
    ),
    ("SwigluConfig", "bias"): (model_with(feed_forward={"kind": "swiglu"}), "feed_forward.bias", False, "shapes"),
    ("ProductKeyConfig", "n_heads"): (_MEMORY, "feed_forward.n_heads", 3, "shapes"),
    ("ProductKeyConfig", "n_keys"): (_MEMORY, "feed_forward.n_keys", 6, "shapes"),
    ("ProductKeyConfig", "top_k"): (_MEMORY, "feed_forward.top_k", 2, "values"),
    ("ProductKeyConfig", "key_dim"): (_MEMORY, "feed_forward.key_dim", 5, "shapes"),
    ("AxialBlockConfig", "width"): (_AXIAL_BLOCK, "axial_block.width", 3, "values"),
    ("AxialBlockConfig", "scale"): (_AXIAL_BLOCK, "axial_block.scale", 0.5, "values"),
    ("EfficientContextConfig", "scale"): (reading("efficient"), "context.scale", 0.5, "values"),
    ("SoftmaxContextConfig", "dropout"): (reading("softmax"), "context.dropout", 0.5, "training"),
    ("LinformerContextConfig", "max_length"): (_LINFORMER_CONTEXT, "context.max_length", 40, "shapes"),
    ("LinformerContextConfig", "k"): (_LINFORMER_CONTEXT, "context.k", 4, "shapes"),
    ("LinformerContextConfig", "sharing"): (_LINFORMER_CONTEXT, "context.sharing", "key_value", "shapes"),
    ("LinformerContextConfig", "dropout"): (_LINFORMER_CONTEXT, "context.dropout", 0.5, "training"),
}  # fmt: skip
for _kind, _name in (("efficient", "Efficient"), ("softmax", "Softmax"), ("linformer", "Linformer")):
    _base = _LINFORMER_CONTEXT if _kind == "linformer" else reading(_kind)
    CHANGES |= {
        (f"{_name}ContextConfig", "n_heads"): (_base, "context.n_heads", 3, "shapes"),
        (f"{_name}ContextConfig", "head_dim"): (_base, "context.head_dim", 5, "shapes"),
        (f"{_name}ContextConfig", "width"): (_base, "context.width", 7, "shapes"),
        (f"{_name}ContextConfig", "feed_forward"): (_base, "context.feed_forward", {"kind": "glu"}, "shapes"),
    }

# How the same result is computed: time and memory. What reads each of them is shown below.
LAYOUT = {
    ("ModelConfig", "checkpoint_activations"),
    *((name, "chunks") for name in ("GeluConfig", "GluConfig", "SwigluConfig", "ProductKeyConfig")),
    *(
        (f"{name}AttentionConfig", field)
        for name in ("Efficient", "Linear", "Decay", "Delta")
        for field in ("chunk", "implementation")
    ),
}
