"""The options of the published linear-attention transformer (LAT) under its names, as settings of ours."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.errors import ConfigError
from protlat.models.config import ModelConfig


class LinformerOptions(Config):
    """LAT's `LinformerSettings`."""

    k: int = Field(256, ge=1)
    """Rows that keys and values are projected to."""


class ContextLinformerOptions(LinformerOptions):
    """LAT's `LinformerContextSettings`."""

    seq_len: int = Field(ge=1)
    """Longest context in tokens."""


class LatOptions(Config):
    """Keyword arguments of LAT's language model (0.19.1) with its defaults, and two of an extension of it."""

    dim: int = Field(ge=2)
    """Model width."""
    depth: int = Field(ge=1)
    """Number of layers."""
    max_seq_len: int = Field(ge=1)
    """Longest input that tables of positions and Linformer projections reach; without either, nothing is limited."""
    heads: int = Field(8, ge=1)
    """Heads of a layer."""
    dim_head: int | None = Field(64, ge=2)
    """Channels per head; null: dim / heads."""
    causal: bool = False
    """Whether no token sees a later one."""
    emb_dim: int | None = Field(None, ge=1)
    """Width of a factorised token embedding; null: dim."""
    reversible: bool = False
    """Reversible layers."""
    ff_chunks: int = Field(1, ge=1)
    """Parts that rows pass the feed-forward in."""
    ff_glu: bool = False
    """Gated feed-forward."""
    ff_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout inside the feed-forward."""
    attn_layer_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the output of attention layers."""
    attn_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of attention weights; local heads have such."""
    blindspot_size: int = Field(1, ge=1)
    """Causal models: tokens of a bucket that its own tokens do not see."""
    n_local_attn_heads: int | tuple[int, ...] = 0
    """Local heads of a layer, or one number for each layer."""
    local_attn_window_size: int = Field(128, ge=1)
    """Reach of local heads; also the width of axial positions and of the axial block."""
    return_embeddings: bool = False
    """Both values give the same settings: `Encoder` returns embeddings, `MaskedLM` and `CausalLM` return logits."""
    receives_context: bool = False
    """Cross-attention to a context behind each layer."""
    pkm_layers: tuple[int, ...] = ()
    """Layers with a product-key memory instead of a feed-forward, from 1."""
    pkm_num_keys: int = Field(128, ge=2)
    """Keys of either half of a product key."""
    attend_axially: bool = False
    """An axial block behind each layer."""
    linformer_settings: LinformerOptions | None = None
    """Linformer heads in place of global linear ones."""
    context_linformer_settings: ContextLinformerOptions | None = None
    """Linformer heads for the context."""
    use_axial_pos_emb: bool = True
    """Axial positions; false: learned ones. Not looked at when use_rotary_emb is set."""
    use_rotary_emb: bool = False
    """Sinusoids at the input, and rotary angles in every head before the feature map."""
    shift_tokens: bool = False
    """Token shift."""
    gate: bool | Literal["write", "output", "seed"] = False
    """Extension: gate per channel on what global heads write (true or write) or on what leaves the heads (output), or
    the extension's own sigmoid of the key's features (seed)."""
    local_conv: bool = False
    """Extension: 3-tap depthwise convolution of the values."""

    @model_validator(mode="after")
    def _acts(self) -> Self:
        given = self.model_fields_set
        local = self.local_heads
        if len(local) != self.depth:
            raise ValueError(f"n_local_attn_heads: {len(local)} numbers for {self.depth} layers")
        if not 0 <= min(local) <= max(local) <= self.heads:
            raise ValueError(f"n_local_attn_heads: from 0 to {self.heads} of {self.heads} heads, got {local}")
        if self.dim_head is None and self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of {self.heads} heads; set dim_head")
        if any(not 1 <= layer <= self.depth for layer in self.pkm_layers):
            raise ValueError(f"pkm_layers: layers are numbered 1 to {self.depth} here, got {self.pkm_layers}")
        if self.attn_dropout and not any(local):
            raise ValueError("attn_dropout acts on local heads only; set n_local_attn_heads, or use attn_layer_dropout")
        if self.blindspot_size > 1 and not self.causal:
            raise ValueError("blindspot_size acts in causal models only; set causal=True, or leave it at 1")
        if self.blindspot_size > 1 and min(local) == self.heads:
            raise ValueError("blindspot_size acts on global heads, but all heads are local; lower n_local_attn_heads")
        if "pkm_num_keys" in given and not self.pkm_layers:
            raise ValueError("pkm_num_keys acts with pkm_layers only; name the layers, or leave it out")
        if self.context_linformer_settings is not None and not self.receives_context:
            raise ValueError("context_linformer_settings acts with receives_context=True only")
        if self.use_rotary_emb and "use_axial_pos_emb" in given and self.use_axial_pos_emb:
            raise ValueError("use_axial_pos_emb does not act together with use_rotary_emb; choose one")
        axial = self.attend_axially or (self.use_axial_pos_emb and not self.use_rotary_emb)
        if "local_attn_window_size" in given and not (axial or any(local)):
            raise ValueError("local_attn_window_size acts on local heads, axial positions and axial blocks; none is on")
        return self

    @property
    def local_heads(self) -> tuple[int, ...]:
        """Local heads of each layer."""
        local = self.n_local_attn_heads
        return (local,) * self.depth if isinstance(local, int) else local

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.dim // self.heads if self.dim_head is None else self.dim_head

    @property
    def scale(self) -> float:
        """What LAT multiplies pooled values with; in its causal form the factor cancels."""
        return 1.0 if self.causal else self.head_dim**-0.5

    def groups(self, n_local: int) -> list[dict[str, Any]]:
        """Heads of a layer with so many local ones."""
        groups: list[dict[str, Any]] = []
        if n_local:
            groups.append({
                "kind": "window", "n_heads": n_local, "radius": self.local_attn_window_size,
                "rotary": self.use_rotary_emb, "dropout": self.attn_dropout,
            })  # fmt: skip
        n_global = self.heads - n_local
        if n_global and self.linformer_settings is not None:
            groups.append({
                "kind": "linformer", "n_heads": n_global, "max_length": self.max_seq_len,
                "k": self.linformer_settings.k,
            })  # fmt: skip
        elif n_global:
            groups.append({
                "kind": "efficient", "n_heads": n_global, "scale": self.scale, "blindspot": self.blindspot_size,
                "rotary": "before" if self.use_rotary_emb else False,
            })  # fmt: skip
        return groups

    def positions(self) -> dict[str, Any]:
        """What is added to the embedding."""
        if self.use_rotary_emb:
            return {"kind": "sinusoidal"}
        if self.use_axial_pos_emb:
            return {"kind": "axial", "max_length": self.max_seq_len, "width": self.local_attn_window_size}
        return {"kind": "learned", "max_length": self.max_seq_len}

    def context(self, feed_forward: dict[str, Any]) -> dict[str, Any] | None:
        """Cross-attention behind each layer: all heads global, no positions."""
        if not self.receives_context:
            return None
        low_rank = self.context_linformer_settings
        common = {"n_heads": self.heads, "feed_forward": feed_forward}
        if low_rank is not None:
            return {**common, "kind": "linformer", "max_length": low_rank.seq_len, "k": low_rank.k}
        # Never causal, so that LAT's factor does not cancel.
        return {**common, "kind": "efficient", "scale": self.head_dim**-0.5}

    def gates(self) -> dict[str, str]:
        """Gates of the extension."""
        if self.gate is False:
            return {}
        if self.gate == "output":
            return {"output": "channel"}
        return {"write": "seed" if self.gate == "seed" else "channel"}


def lat_config(**options: Any) -> ModelConfig:
    """Settings for the keyword arguments of LAT's language model.

    Parameters
    ----------
    **options
        The fields of `LatOptions`: `dim`, `depth` and `max_seq_len` are required; `num_tokens` is not taken, since the
        alphabet gives it.

    Returns
    -------
    ModelConfig

    Raises
    ------
    ConfigError
        An unknown name, with the nearest known one; or an option that does not act on what the others ask for, which
        LAT takes and ignores.

    Notes
    -----
    The number of weights is LAT's wherever both have an option. What is defined otherwise, or better:

    - Windows are exact: a token sees those at most `local_attn_window_size` away (behind it, when causal); LAT sees
      whole blocks, up to twice as far, and with padding in the last one. No length must be a multiple of anything.
    - Causal heads are exact at any `blindspot_size`, which stands for LAT's hidden bucket, not for its memory. Keys
      are exponentials without overflow, and the sum of weights has no floor of 0.001 (LAT's, reached by small keys).
    - `ff_glu`, `ff_dropout` and, with `emb_dim`, returned embeddings work in every layer; LAT ignores the first two
      outside of axial and context blocks and fails on the third. Returned embeddings have the model's width.
    - Masks, token shift and convolutions never read padding or another sequence.
    - Positions are added at the model's width, behind the projection of a factorised embedding; the final norm stands
      before the projection back to it. Embeddings and positions start with spread 0.02 instead of 1.
    - Reversible layers replay autocast too, and hold their streams in float32.
    - Product-key queries pass a layer norm instead of a batch norm; `optim.product_key_lr: 1e-2` is the reference's
      rate for values. Axial blocks take any length: columns are shorter where the width does not divide.
    - Linformer heads stand beside local ones where LAT drops the latter, and do not read padding.
    - `gate` and `local_conv` are defined properly (the extension's gate was about one half everywhere, which
      ``gate="seed"`` keeps; its convolution read the next token in causal models).

    References
    ----------
    Shen et al. 2021, "Efficient attention: attention with linear complexities", section 3.

    Examples
    --------
    >>> from protlat.models.reference_names import lat_config
    >>> config = lat_config(dim=512, depth=6, max_seq_len=8192, n_local_attn_heads=(4, 4, 4, 4, 2, 2))
    >>> [group.kind for group in config.groups_of(5)]
    ['window', 'efficient']
    """
    if "num_tokens" in options:
        raise ConfigError("lat_config: num_tokens: comes with the alphabet that the model is built with; leave it out")
    chosen = LatOptions.parse(options, "lat_config")
    by_layer = {layer: chosen.groups(n) for layer, n in enumerate(chosen.local_heads)}
    same = len(set(chosen.local_heads)) == 1
    feed_forward = {"kind": "glu" if chosen.ff_glu else "gelu", "chunks": chosen.ff_chunks}
    context = chosen.context(feed_forward)
    product_keys = {
        "kind": "product_key",
        "n_keys": chosen.pkm_num_keys,
        "top_k": min(32, chosen.pkm_num_keys),
        "chunks": chosen.ff_chunks,
    }
    values: dict[str, Any] = {
        "d_model": chosen.dim,
        "n_layers": chosen.depth,
        "head_dim": chosen.head_dim,
        "attention": by_layer[0],
        "attention_by_layer": {} if same else by_layer,
        "causal": chosen.causal,
        "gate": chosen.gates(),
        "local_conv": {"size": 3, "target": "v"} if chosen.local_conv else None,
        "token_shift": chosen.shift_tokens,
        "positions": chosen.positions(),
        "feed_forward": feed_forward,
        "feed_forward_by_layer": {layer - 1: product_keys for layer in chosen.pkm_layers},
        "axial_block": {"width": chosen.local_attn_window_size, "scale": chosen.scale}
        if chosen.attend_axially
        else None,
        "dropout": {"feed_forward": chosen.ff_dropout, "attention_layer": chosen.attn_layer_dropout},
        "embedding_dim": chosen.emb_dim,
        "tie_output": False,
        "head": "plain",
        "reversible": chosen.reversible,
    }
    if context is not None:
        values["context"] = context
    return ModelConfig.parse(values, "lat_config")
