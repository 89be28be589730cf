"""Plain definitions of every operation on one sequence: quadratic, unmasked, slow. The tests' truth."""

from protlat.ops.reference.banded import banded_attention
from protlat.ops.reference.basic import (
    depthwise_conv,
    efficient_attention,
    linear_attention,
    rotary_matrix,
    softmax_attention,
    token_shift,
    window_attention,
)
from protlat.ops.reference.causal import (
    causal_depthwise_conv,
    causal_exp_attention,
    causal_linear_attention,
    causal_softmax_attention,
    causal_token_shift,
    causal_window_attention,
)
from protlat.ops.reference.decay import decay_attention, delta_rule
from protlat.ops.reference.image import convolve, image_linear_attention
from protlat.ops.reference.linformer import cross_efficient_attention, cross_softmax_attention, linformer_attention
from protlat.ops.reference.memory import product_key_memory

__all__ = [
    "banded_attention",
    "causal_depthwise_conv",
    "causal_exp_attention",
    "causal_linear_attention",
    "causal_softmax_attention",
    "causal_token_shift",
    "causal_window_attention",
    "convolve",
    "cross_efficient_attention",
    "cross_softmax_attention",
    "decay_attention",
    "delta_rule",
    "depthwise_conv",
    "efficient_attention",
    "image_linear_attention",
    "linear_attention",
    "linformer_attention",
    "product_key_memory",
    "rotary_matrix",
    "softmax_attention",
    "token_shift",
    "window_attention",
]
