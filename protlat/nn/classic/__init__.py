"""The classic forms of attention as small modules: a pooling head, a sequence-to-sequence head, kernel regression.

They work on padded (B, L, ...) tensors with valid lengths, or on packed sequences where that is natural; the encoder's
own heads stand in `protlat.nn.attention`.
"""

from protlat.nn.classic.additive import AdditiveAttention, AttentionPooling
from protlat.nn.classic.dot_product import ScaledDotProductAttention
from protlat.nn.classic.gru_decoder import GRUDecoder
from protlat.nn.classic.kernel_regression import KernelRegression
from protlat.nn.classic.masked_softmax import masked_softmax
from protlat.nn.classic.multi_head import MultiHeadAttention

__all__ = [
    "AdditiveAttention",
    "AttentionPooling",
    "GRUDecoder",
    "KernelRegression",
    "MultiHeadAttention",
    "ScaledDotProductAttention",
    "masked_softmax",
]
