"""Small models, one for every option of the encoder, for the contract tests."""

from __future__ import annotations

from protlat.models import ModelConfig

_BASE = {"d_model": 24, "n_layers": 2, "head_dim": 8}
_WINDOW = {"kind": "window", "n_heads": 1, "radius": 5}
_GLOBAL = {"kind": "efficient", "n_heads": 2, "chunk": 8}
_DECAY = {"kind": "decay", "n_heads": 3, "shortest": 2, "longest": 30, "chunk": 8}
_MEMORY = {"kind": "product_key", "n_heads": 2, "n_keys": 8, "top_k": 8, "key_dim": 6}
_LINFORMER = {"kind": "linformer", "n_heads": 2, "max_length": 100_000, "k": 4}
_BANDED = {"kind": "banded", "n_heads": 2, "radius": 5}

_OPTIONS = {
    "default": {},
    "efficient": {"attention": [{"kind": "efficient", "n_heads": 3}]},
    "efficient-chunked": {"attention": [{**_GLOBAL, "n_heads": 3, "implementation": "chunked"}]},
    "efficient-rotary": {"attention": [{**_GLOBAL, "rotary": True}]},
    "efficient-rotary-before": {"attention": [{**_GLOBAL, "rotary": "before"}]},
    "linear-rotary-before": {"attention": [{"kind": "linear", "n_heads": 2, "rotary": "before"}]},
    "linear-elu": {"attention": [{"kind": "linear", "n_heads": 3}]},
    "linear-relu": {"attention": [{"kind": "linear", "n_heads": 3, "feature_map": {"kind": "relu"}}]},
    "linear-softmax": {"attention": [{"kind": "linear", "n_heads": 3, "feature_map": {"kind": "softmax"}}]},
    "linear-chunked-rotary": {
        "attention": [{"kind": "linear", "n_heads": 2, "implementation": "chunked", "chunk": 8, "rotary": True}]
    },
    "window": {"attention": [_WINDOW]},
    "banded-softmax": {"attention": [_BANDED, _GLOBAL]},
    "banded-evo": {"attention": [{**_BANDED, "rounds": 3, "taps": 3, "activation": "gelu", "shared_taps": True}]},
    "banded-rmsnorm": {"attention": [{**_BANDED, "rounds": 2, "normalise": "rmsnorm", "remask_output": False}]},
    "banded-plain": {"attention": [{**_BANDED, "normalise": "none", "rotary": False}]},
    "decay-data": {"attention": [{**_DECAY, "diagonal": True, "no_decay_heads": 1}], "gate": {"head_norm": True}},
    "decay-learned-gated": {"attention": [_WINDOW, {**_DECAY, "decay": "learned"}], "gate": {"output": "head"}},
    "decay-fixed-normalised": {
        "attention": [{**_DECAY, "decay": "fixed", "feature_map": {"kind": "elu"}, "normaliser": True}],
        "gate": {"write": "channel"},
    },
    "forget-gate": {
        "gate": {"forget": "head", "write": "head"},
        "attention": [{"kind": "linear", "n_heads": 3}, _WINDOW],
    },
    "linformer": {"attention": [_LINFORMER, _WINDOW]},
    "linformer-key-value": {"attention": [{**_LINFORMER, "sharing": "key_value"}]},
    "linformer-layerwise": {"attention": [{**_LINFORMER, "sharing": "layerwise"}, _GLOBAL]},
    "softmax": {"attention": [{"kind": "softmax", "n_heads": 3}]},
    "by-layer": {"attention_by_layer": {1: [{"kind": "softmax", "n_heads": 1}, {"kind": "linear", "n_heads": 1}]}},
    "write-channel": {"gate": {"write": "channel"}},
    "write-head": {"gate": {"write": "head"}},
    "write-linear": {"gate": {"write": "head"}, "attention": [{"kind": "linear", "n_heads": 1}, _WINDOW]},
    "write-seed": {"gate": {"write": "seed"}},
    "write-seed-linear": {"gate": {"write": "seed"}, "attention": [{"kind": "linear", "n_heads": 2}, _WINDOW]},
    "output-channel": {"gate": {"output": "channel"}},
    "output-head-plain": {"gate": {"output": "head", "norm": False}},
    "both-gates": {"gate": {"write": "channel", "output": "channel"}},
    "no-conv": {"local_conv": None},
    "conv-qkv-7": {"local_conv": {"size": 7, "target": "qkv"}},
    "token-shift": {"token_shift": True},
    "sinusoidal": {"positions": {"kind": "sinusoidal"}},
    "learned": {"positions": {"kind": "learned", "max_length": 100_000}},
    "rms": {"norm": "rms"},
    "glu": {"feed_forward": {"kind": "glu"}},
    "swiglu": {"feed_forward": {"kind": "swiglu"}},
    "factorised": {"embedding_dim": 10},
    "untied": {"tie_output": False},
    "checkpointed": {"checkpoint_activations": True},
    "axial": {"positions": {"kind": "axial", "max_length": 100_000, "width": 64}},
    "axial-block": {"axial_block": {"width": 4}, "gate": {"write": "head", "output": "head"}},
    "product-key": {"feed_forward_by_layer": {1: _MEMORY}},
    "ff-chunks": {"feed_forward": {"kind": "glu", "chunks": 3}},
    "plain-head": {"head": "plain", "embedding_dim": 10},
    "plain-head-untied": {"head": "plain", "tie_output": False},
    "reversible": {"reversible": True},
    "reversible-everything": {
        "reversible": True,
        "axial_block": {"width": 7},
        "feed_forward": {"kind": "swiglu", "chunks": 2},
        "feed_forward_by_layer": {0: _MEMORY},
        "token_shift": True,
    },
}
VARIANTS = {
    name: ModelConfig.parse({**_BASE, "attention": [_WINDOW, _GLOBAL], **options}) for name, options in _OPTIONS.items()
}

_LINEAR = {"kind": "linear", "n_heads": 2, "chunk": 8}
_CAUSAL_OPTIONS = {
    "default": {},
    "efficient": {"attention": [{"kind": "efficient", "n_heads": 3}]},
    "efficient-chunk-1": {"attention": [{**_GLOBAL, "chunk": 1}]},
    "efficient-rotary": {"attention": [{**_GLOBAL, "rotary": True}]},
    "efficient-rotary-before": {"attention": [{**_GLOBAL, "rotary": "before", "implementation": "chunked"}]},
    "efficient-blindspot": {"attention": [{**_GLOBAL, "blindspot": 3}, _WINDOW]},
    "linear-elu": {"attention": [_LINEAR]},
    # Of a few keys and eight channels, relu may leave a weight so small that the usual floor shows.
    "linear-relu": {"attention": [{**_LINEAR, "feature_map": {"kind": "relu"}, "eps": 1e-12}]},
    "linear-softmax": {"attention": [{**_LINEAR, "feature_map": {"kind": "softmax"}}]},
    "linear-rotary": {"attention": [{**_LINEAR, "rotary": True, "chunk": 5}]},
    "linear-blindspot": {"attention": [{**_LINEAR, "blindspot": 4, "rotary": True}, _WINDOW]},
    "linear-blindspot-long": {"attention": [{**_LINEAR, "blindspot": 16}]},
    "banded-softmax": {"attention": [_BANDED, _GLOBAL]},
    "banded-evo": {"attention": [{**_BANDED, "rounds": 3, "taps": 3, "activation": "gelu", "shared_taps": True}]},
    "banded-rmsnorm": {"attention": [{**_BANDED, "rounds": 2, "normalise": "rmsnorm", "remask_output": False}]},
    "decay": {"attention": [{**_DECAY, "diagonal": True, "no_decay_heads": 1}], "gate": {"head_norm": True}},
    "decay-learned": {"attention": [{**_DECAY, "decay": "learned"}, _WINDOW], "gate": {"output": "head"}},
    "forget-gate": {"gate": {"forget": "head", "write": "channel"}, "attention": [_LINEAR]},
    "delta": {"attention": [{"kind": "delta", "n_heads": 3, "gated": False, "chunk": 8}]},
    "delta-gated": {
        "attention": [{**_DECAY, "kind": "delta", "negative_eigenvalues": True}],
        "gate": {"output": "head"},
    },
    "window": {"attention": [_WINDOW]},
    "softmax": {"attention": [{"kind": "softmax", "n_heads": 3}]},
    "by-layer": {"attention_by_layer": {1: [{"kind": "softmax", "n_heads": 1}, _LINEAR]}},
    "write-channel": {"gate": {"write": "channel"}},
    "write-head": {"gate": {"write": "head"}, "attention": [_LINEAR, _WINDOW]},
    "write-seed": {"gate": {"write": "seed"}, "attention": [_LINEAR]},
    "output": {"gate": {"output": "channel"}},
    "no-conv": {"local_conv": None},
    "conv-qkv-7": {"local_conv": {"size": 7, "target": "qkv"}},
    "token-shift": {"token_shift": True},
    "sinusoidal": {"positions": {"kind": "sinusoidal"}},
    "learned": {"positions": {"kind": "learned", "max_length": 100_000}},
    "checkpointed": {"checkpoint_activations": True},
    "axial": {"positions": {"kind": "axial", "max_length": 100_000, "width": 64}},
    "axial-block": {"axial_block": {"width": 4}},
    "product-key": {"feed_forward_by_layer": {1: _MEMORY}},
    "reversible": {"reversible": True},
    "reversible-axial": {"reversible": True, "axial_block": {"width": 4}, "gate": {"write": "head"}},
}
CAUSAL = {
    name: ModelConfig.parse({**_BASE, "causal": True, "attention": [_WINDOW, _GLOBAL], **options})
    for name, options in _CAUSAL_OPTIONS.items()
}


def bfloat16_error(config: ModelConfig) -> float:
    """Greatest relative error of two blocks in bfloat16, over all tokens: 8 bits a value.

    A memory that reads its best values may read another one where two are as good to 8 bits: few tokens, large errors.
    """
    kinds = {config.feed_forward_of(layer).kind for layer in range(config.n_layers)}
    return 0.1 if "product_key" in kinds else 0.03
