"""Positive feature maps for linear attention."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from protlat.config import Config


class EluMap(nn.Module):
    """elu(x) + 1: x + 1 above zero, exp(x) below.

    References
    ----------
    Katharopoulos et al. 2020, equation 7.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not F.elu(x) + 1: that is zero below -17 in float32 and -5 in bfloat16, where exp(x) is not.
        return x.clamp(max=0).exp() + F.relu(x)


class ReluMap(nn.Module):
    """max(x, 0). A query whose features are all zero reads nothing: its output is zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


class SoftmaxMap(nn.Module):
    """Softmax over the channels of a head: features sum to one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


class EluConfig(Config):
    """elu(x) + 1."""

    kind: Literal["elu"] = "elu"

    def build(self) -> nn.Module:
        return EluMap()


class ReluConfig(Config):
    """max(x, 0)."""

    kind: Literal["relu"] = "relu"

    def build(self) -> nn.Module:
        return ReluMap()


class SoftmaxConfig(Config):
    """Softmax over the channels of a head."""

    kind: Literal["softmax"] = "softmax"

    def build(self) -> nn.Module:
        return SoftmaxMap()


FeatureMapConfig = Annotated[EluConfig | ReluConfig | SoftmaxConfig, Field(discriminator="kind")]
