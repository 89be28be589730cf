"""Settings drawn at random over all options of a model, for the test of their combinations."""

from __future__ import annotations

import random
from typing import Any

Values = dict[str, Any]

LONGEST = 48
"""No drawn limit of length is below it."""
CONTEXT_WIDTH = 5


def draw(seed: int) -> Values:
    """Settings of a small model. Most options stay at their default, so that about half of the draws can be built."""
    rng = random.Random(seed)
    causal = rng.random() < 0.5
    n_layers = rng.choice((1, 2, 2, 3))
    values: Values = {
        "d_model": rng.choice((6, 12, 15, 16)),
        "n_layers": n_layers,
        "head_dim": rng.choice((4, 6, 8, 8, 5)),
        "attention": _groups(rng, causal),
        "causal": causal,
        "gate": _gate(rng),
        "local_conv": _maybe(rng, 0.5, {"size": rng.choice((3, 5, 7)), "target": rng.choice(("v", "qkv"))}),
        "token_shift": rng.random() < 0.3,
        "positions": _positions(rng),
        "norm": rng.choice(("layer", "rms")),
        "feed_forward": _feed_forward(rng),
        "axial_block": _maybe(rng, 0.2, {"width": rng.choice((2, 3, 7)), "scale": rng.choice((1.0, 0.5))}),
        "context": _maybe(rng, 0.2, _context(rng)),
        "dropout": {
            name: rng.choice((0.0, 0.0, 0.3)) for name in ("embedding", "residual", "attention_layer", "feed_forward")
        },
        "embedding_dim": rng.choice((None, None, 4, 20)),
        "head": rng.choice(("dense", "plain")),
        "tie_output": rng.random() < 0.5,
        "reversible": rng.random() < 0.3,
        "checkpoint_activations": rng.random() < 0.2,
    }
    if rng.random() < 0.3:
        values["attention_by_layer"] = {rng.randrange(n_layers): _groups(rng, causal)}
    if rng.random() < 0.3:
        values["feed_forward_by_layer"] = {rng.randrange(n_layers): _feed_forward(rng)}
    return values


def _maybe(rng: random.Random, chance: float, value: Any) -> Any:
    return value if rng.random() < chance else None


def _groups(rng: random.Random, causal: bool) -> list[Values]:
    kinds = list(_KINDS)
    if rng.random() < 0.9:
        kinds.remove("linformer" if causal else "delta")
    return [_head(rng, rng.choice(kinds), causal) for _ in range(rng.choice((1, 2, 2, 3)))]


def _head(rng: random.Random, kind: str, causal: bool) -> Values:
    return {"kind": kind, "n_heads": rng.choice((1, 2, 3)), **_KINDS[kind](rng, causal)}


def _window(rng: random.Random, _causal: bool) -> Values:
    return {"radius": rng.choice((1, 3, 8, 50)), "rotary": rng.random() < 0.5, "dropout": rng.choice((0.0, 0.2))}


def _softmax(rng: random.Random, _causal: bool) -> Values:
    return {"rotary": rng.random() < 0.5, "dropout": rng.choice((0.0, 0.2))}


def _global(rng: random.Random, causal: bool) -> Values:
    values: Values = {
        "rotary": rng.choice((False, False, True, "before")),
        "implementation": rng.choice(("auto", "chunked") if causal or rng.random() < 0.7 else ("auto", "split")),
    }
    if values["implementation"] == "chunked" or rng.random() < 0.3:
        values["chunk"] = rng.choice((1, 3, 8, 64))
    if rng.random() < (0.4 if causal else 0.05):
        values["blindspot"] = rng.choice((2, 5))
    return values


def _efficient(rng: random.Random, causal: bool) -> Values:
    return {**_global(rng, causal), "scale": rng.choice((1.0, 0.4))}


def _linear(rng: random.Random, causal: bool) -> Values:
    kind = rng.choice(("elu", "relu", "softmax"))
    return {**_global(rng, causal), "feature_map": {"kind": kind}, "eps": rng.choice((1e-6, 1e-4))}


def _half_lives(rng: random.Random) -> Values:
    return {
        "shortest": rng.choice((0.5, 2.0)),
        "longest": rng.choice((2.0, 30.0, 1e5)),
        "chunk": rng.choice((1, 5, 16)),
    }


def _decay(rng: random.Random, _causal: bool) -> Values:
    mapped = rng.choice(("none", "none", "elu", "relu", "softmax"))
    return {
        **_half_lives(rng),
        "decay": rng.choice(("fixed", "learned", "data")),
        "no_decay_heads": rng.choice((0, 0, 1)),
        "feature_map": {"kind": mapped},
        "normalise": rng.choice(("l2", "none")),
        "normaliser": mapped != "none" and rng.random() < 0.5,
        "diagonal": rng.random() < 0.3,
        "implementation": rng.choice(("auto", "chunked")),
    }


def _delta(rng: random.Random, _causal: bool) -> Values:
    gated = rng.random() < 0.5
    own = _half_lives(rng) if gated else {"chunk": rng.choice((1, 5, 16))}
    return {**own, "gated": gated, "negative_eigenvalues": rng.random() < 0.5}


def _linformer(rng: random.Random, _causal: bool) -> Values:
    return {
        "max_length": rng.choice((LONGEST, 300)),
        "k": rng.choice((2, 4)),
        "sharing": rng.choice(("headwise", "key_value", "layerwise")),
        "dropout": rng.choice((0.0, 0.2)),
    }


def _banded(rng: random.Random, _causal: bool) -> Values:
    rounds = rng.choice((1, 2, 3))
    normalise = rng.choice(("softmax", "rmsnorm", "none"))
    return {
        "radius": rng.choice((2, 5, 40)),
        "rounds": rounds,
        "taps": rng.choice((3, 5)),
        "shared_taps": rng.random() < 0.5,
        "normalise": normalise,
        "activation": "none" if rounds == 1 else rng.choice(("none", "gelu", "relu", "silu", "tanh")),
        "scale": rng.random() < 0.7,
        "rotary": rng.random() < 0.5,
        "remask_output": normalise == "softmax" or rng.random() < 0.5,
    }


_KINDS = {
    "window": _window,
    "softmax": _softmax,
    "efficient": _efficient,
    "linear": _linear,
    "decay": _decay,
    "delta": _delta,
    "linformer": _linformer,
    "banded": _banded,
}


def _gate(rng: random.Random) -> Values:
    values: Values = {
        "write": rng.choice(("none", "none", "none", "channel", "head", "seed")),
        "output": rng.choice(("none", "none", "channel", "head")),
        "forget": rng.choice(("none", "none", "none", "none", "head")),
    }
    if values["output"] != "none":
        values["norm"] = rng.random() < 0.5
    elif rng.random() < 0.3:
        values["head_norm"] = True
    if rng.random() < 0.1:
        values["write_bias"] = -1.0
    return values


def _positions(rng: random.Random) -> Values:
    kind = rng.choice(("none", "none", "sinusoidal", "learned", "axial"))
    if kind == "learned":
        return {"kind": kind, "max_length": rng.choice((LONGEST, 300))}
    if kind == "axial":
        return {"kind": kind, "max_length": rng.choice((LONGEST, 300)), "width": rng.choice((1, 5, 16))}
    return {"kind": kind}


def _feed_forward(rng: random.Random) -> Values:
    kind = rng.choice(("gelu", "glu", "swiglu", "product_key"))
    values: Values = {"kind": kind, "chunks": rng.choice((1, 1, 3))}
    if kind == "product_key":
        n_keys = rng.choice((3, 6))
        return {**values, "n_heads": rng.choice((1, 2)), "n_keys": n_keys, "top_k": rng.choice((2, 3)), "key_dim": 5}
    return {**values, "expansion": rng.choice((1.0, 2.5)), "bias": rng.random() < 0.5}


def _context(rng: random.Random) -> Values:
    kind = rng.choice(("efficient", "softmax", "linformer"))
    values: Values = {
        "kind": kind,
        "n_heads": rng.choice((1, 2)),
        "head_dim": rng.choice((None, 3)),
        "width": CONTEXT_WIDTH,
        "feed_forward": _feed_forward(rng),
    }
    if kind == "efficient":
        return {**values, "scale": rng.choice((1.0, 0.5))}
    values["dropout"] = rng.choice((0.0, 0.2))
    if kind == "linformer":
        values.update(max_length=rng.choice((20, 300)), k=3, sharing=rng.choice(("headwise", "key_value", "layerwise")))
    return values
