"""The reference transformer's names: what they become, how many weights that makes, what is refused."""

from __future__ import annotations

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import Encoder, ModelConfig, language_model_class, load_preset
from protlat.models.reference_names import LatOptions, lat_config
from protlat.ops.segments import Segments

SIZE = {"dim": 32, "depth": 2, "max_seq_len": 64, "heads": 4, "dim_head": 16}
WINDOW = {"local_attn_window_size": 8}
# Each with what it adds to the weights of LAT at SIZE: V = 33 tokens, D = 32, h d = 64.
OPTIONS = {
    "axial positions": ({}, (1 + 128) * 32),
    "narrow axial positions": (WINDOW, (8 + 8) * 32),
    "learned positions": ({"use_axial_pos_emb": False}, 64 * 32),
    "rotary": ({"use_rotary_emb": True}, 0),
    "local heads": ({"n_local_attn_heads": (1, 4), "use_rotary_emb": True}, 0),
    "causal": ({"causal": True, "blindspot_size": 2, "shift_tokens": True, "use_rotary_emb": True}, 0),
    "reversible": ({"reversible": True, "ff_chunks": 2, "use_rotary_emb": True}, 0),
    "dropouts": ({"ff_dropout": 0.1, "attn_layer_dropout": 0.1, "use_rotary_emb": True}, 0),
    # w1 D -> 8 D instead of D -> 4 D: 4 D^2 + 4 D more a layer
    "glu": ({"ff_glu": True, "use_rotary_emb": True}, 2 * (4 * 32**2 + 4 * 32)),
    # A block more a layer
    "axially": (
        {"attend_axially": True, "use_rotary_emb": True},
        2 * (4 * 32 * 64 + 32 + 8 * 32**2 + 5 * 32 + 4 * 32),
    ),
    # 128^2 values, 4 heads of two halves of 128 channels, their keys and norm, in place of a feed-forward
    "product keys": (
        {"pkm_layers": (2,), "use_rotary_emb": True},
        128**2 * 32 + 4 * 2 * 128 * (32 + 128) + 2 * 128 - (8 * 32**2 + 5 * 32),
    ),
    "linformer": ({"linformer_settings": {"k": 8}, "use_rotary_emb": True}, 2 * 2 * 64 * 8),
    # A block more a layer, and for low rank two matrices
    "context": (
        {"receives_context": True, "use_rotary_emb": True},
        2 * (4 * 32 * 64 + 32 + 8 * 32**2 + 5 * 32 + 4 * 32),
    ),
    "low-rank context": (
        {"receives_context": True, "use_rotary_emb": True, "context_linformer_settings": {"seq_len": 48, "k": 8}},
        2 * (4 * 32 * 64 + 32 + 8 * 32**2 + 5 * 32 + 4 * 32 + 2 * 48 * 8),
    ),
    # Embedding, read-out and two projections; LAT's norm stands behind the second and is narrow, ours before it.
    "factorised": (
        {"emb_dim": 8, "use_rotary_emb": True},
        2 * 33 * (8 - 32) + (8 * 32 + 32) + (32 * 8 + 8),
    ),
    "write gate": ({"gate": True, "use_rotary_emb": True}, 2 * (32 * 64 + 64)),
    "output gate": ({"gate": "output", "use_rotary_emb": True}, 2 * (32 * 64 + 64)),
    "seed gate": ({"gate": "seed", "use_rotary_emb": True}, 0),
    "convolution": ({"local_conv": True, "use_rotary_emb": True}, 2 * (3 * 64 + 64)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_are_those_of_the_formula(rng: torch.Generator, name: str) -> None:
    options, more = OPTIONS[name]
    config = lat_config(**{**SIZE, **options})
    model = language_model_class(config)(config, PROTEIN)
    # Attention 4 D h d + D, feed-forward 8 D^2 + 5 D, two norms; embedding, norm, read-out with bias
    layer = 4 * 32 * 64 + 32 + 8 * 32**2 + 5 * 32 + 4 * 32
    assert model.n_parameters() == 2 * layer + 2 * 32 + 33 * 32 + (33 * 32 + 33) + more
    context = {}
    if config.context is not None:
        vectors = torch.randn(20, 32, generator=rng)
        context = {"context": vectors, "context_segments": Segments([7, 13])}
    out = model(torch.randint(4, 24, (30,), generator=rng), Segments([11, 19]), **context)
    assert out.shape == (30, 33)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        {"use_rotary_emb": True},
        {"use_axial_pos_emb": False},
        {"n_local_attn_heads": (1, 2), **WINDOW},
        {"attend_axially": True, "dim_head": 8, **WINDOW},
        {"pkm_layers": (2,)},
        {"reversible": True, "ff_chunks": 2, "causal": True},
        {"receives_context": True},
    ],
)
def test_weights_are_as_many_as_in_the_reference_itself(options: dict) -> None:
    peer = pytest.importorskip("linear_attention_transformer", reason="the extra 'bench' is not installed")
    config = lat_config(**{**SIZE, **options})
    ours = language_model_class(config)(config, PROTEIN).n_parameters()
    theirs = peer.LinearAttentionTransformerLM(num_tokens=33, **{**SIZE, **options})
    assert ours == sum(p.numel() for p in theirs.parameters())


def test_what_the_options_become() -> None:
    config = lat_config(
        dim=64, depth=3, max_seq_len=100, heads=4, dim_head=None, emb_dim=16, causal=True, reversible=True, ff_chunks=2,
        ff_glu=True, ff_dropout=0.1, attn_layer_dropout=0.2, attn_dropout=0.3, blindspot_size=8,
        n_local_attn_heads=(1, 2, 4), local_attn_window_size=10, attend_axially=True, shift_tokens=True, pkm_layers=(1, 3),
        pkm_num_keys=64, return_embeddings=True, gate="output", local_conv=True,
    )  # fmt: skip
    window = {"kind": "window", "radius": 10, "rotary": False, "dropout": 0.3}
    pooled = {"kind": "efficient", "blindspot": 8, "scale": 1.0, "rotary": False}
    memory = {"kind": "product_key", "n_keys": 64, "chunks": 2}
    assert config == ModelConfig.parse({
        "d_model": 64, "n_layers": 3, "head_dim": 16, "causal": True,
        "attention": [{**window, "n_heads": 1}, {**pooled, "n_heads": 3}],
        "attention_by_layer": {
            0: [{**window, "n_heads": 1}, {**pooled, "n_heads": 3}],
            1: [{**window, "n_heads": 2}, {**pooled, "n_heads": 2}],
            2: [{**window, "n_heads": 4}],
        },
        "gate": {"output": "channel"}, "local_conv": {"size": 3, "target": "v"}, "token_shift": True,
        "positions": {"kind": "axial", "max_length": 100, "width": 10},
        "feed_forward": {"kind": "glu", "chunks": 2}, "feed_forward_by_layer": {0: memory, 2: memory},
        "axial_block": {"width": 10}, "dropout": {"feed_forward": 0.1, "attention_layer": 0.2},
        "embedding_dim": 16, "head": "plain", "tie_output": False, "reversible": True,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lat", {}),
        ("lat_gate", {"gate": True}),
        ("lat_conv", {"local_conv": True}),
        ("lat_full", {"gate": True, "local_conv": True}),
    ],
)
def test_presets_are_the_reference(name: str, options: dict) -> None:
    assert load_preset(name) == lat_config(dim=512, depth=6, max_seq_len=8192, use_rotary_emb=True, **options)


def test_defaults_are_those_of_the_reference() -> None:
    peer = pytest.importorskip("linear_attention_transformer", reason="the extra 'bench' is not installed")
    import inspect

    theirs = dict(inspect.signature(peer.LinearAttentionTransformerLM.__init__).parameters)
    for name in ("self", "num_tokens"):
        del theirs[name]
    ours = {name: field for name, field in LatOptions.model_fields.items() if name not in ("gate", "local_conv")}
    assert set(ours) == set(theirs)
    for name, field in ours.items():
        assert field.is_required() == (theirs[name].default is inspect.Parameter.empty)
        assert field.is_required() or field.default == theirs[name].default, name


def test_embeddings_of_a_factorised_model_are_as_wide_as_the_model(rng: torch.Generator) -> None:
    encoder = Encoder(lat_config(**SIZE, emb_dim=8, return_embeddings=True), PROTEIN)
    tokens = torch.randint(4, 24, (20,), generator=rng)
    assert encoder(tokens, Segments([20]))[2].shape == (20, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_local_attn_head": 2}, "unknown key; did you mean 'n_local_attn_heads'"),
        ({"blindspot": 2}, "did you mean 'blindspot_size'"),
        ({"num_tokens": 20}, "num_tokens: comes with the alphabet"),
        ({"n_local_attn_heads": (1, 2, 3)}, "3 numbers for 2 layers"),
        ({"n_local_attn_heads": 5}, "from 0 to 4 of 4 heads"),
        ({"heads": 5, "dim_head": None}, "32 is not a multiple of 5 heads"),
        ({"pkm_layers": (0,)}, "layers are numbered 1 to 2"),
        ({"pkm_num_keys": 64}, "acts with pkm_layers only"),
        ({"attn_dropout": 0.1}, "acts on local heads only"),
        ({"blindspot_size": 2}, "set causal=True"),
        ({"blindspot_size": 2, "causal": True, "n_local_attn_heads": 4}, "all heads are local"),
        ({"use_rotary_emb": True, "use_axial_pos_emb": True}, "choose one"),
        ({"use_rotary_emb": True, "local_attn_window_size": 8}, "none is on"),
        ({"linformer_settings": {"k": 8}, "causal": True}, "linformer heads cannot be causal"),
        ({"context_linformer_settings": {"seq_len": 9, "k": 8}}, "receives_context=True only"),
    ],
)
def test_what_does_not_act_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lat_config(**{**SIZE, **options})


def test_the_number_of_tokens_belongs_to_the_alphabet() -> None:
    with pytest.raises(ConfigError, match="num_tokens: comes with the alphabet"):
        lat_config(num_tokens=33, dim=64, depth=1, max_seq_len=64)
