"""The forget gate: normalised linear heads whose weights fade by a factor per token and head."""

from __future__ import annotations

from protlat.nn.attention import AnyAttention
from protlat.nn.attention.decay import DecayAttentionConfig
from protlat.nn.attention.linear import LinearAttentionConfig
from protlat.nn.gate import GateConfig

# What a forgetting head has too; anything else of a linear head would not act.
_KEPT = {"kind", "n_heads", "feature_map", "chunk"}


def with_forget_gate(group: AnyAttention, gate: GateConfig) -> AnyAttention:
    """A group of heads as `gate.forget` makes it: `linear` heads become decay heads with a map and a normaliser.

    Parameters
    ----------
    group : attention config
    gate : GateConfig

    Returns
    -------
    attention config
        `group` itself without a forget gate, and for kinds other than linear.

    Raises
    ------
    ValueError
        A setting of the linear heads would not act.
    """
    if gate.forget == "none" or not isinstance(group, LinearAttentionConfig):
        return group
    plain = LinearAttentionConfig(n_heads=group.n_heads)
    for name in type(group).model_fields:
        if name not in _KEPT and getattr(group, name) != getattr(plain, name):
            raise ValueError(
                f"linear heads: {name} does not act with gate.forget; leave it at {getattr(plain, name)!r}, or set "
                f"gate.forget: none"
            )
    # Not `model_fields_set`: the settings of a model folder are all set.
    chunk = {} if group.chunk == plain.chunk else {"chunk": group.chunk}
    return DecayAttentionConfig(
        n_heads=group.n_heads, feature_map=group.feature_map, normalise="none", normaliser=True, **chunk
    )


def check_forget_gate(groups: tuple[AnyAttention, ...], gate: GateConfig, layer: int) -> None:
    """Refuse a forget gate that cannot act on the heads of a layer.

    Raises
    ------
    ValueError
        With the alternative named.
    """
    if gate.forget == "none":
        return
    if not any(isinstance(group, LinearAttentionConfig) for group in groups):
        kinds = ", ".join(sorted({group.kind for group in groups}))
        raise ValueError(
            f"gate.forget acts on linear heads, but layer {layer} has only {kinds}; use kind decay there, or give the "
            f"layer linear heads"
        )
    for group in groups:
        with_forget_gate(group, gate)
