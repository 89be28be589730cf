"""Linear attention over the pixels of an image: contact maps, pair features."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from protlat.errors import ConfigError


class PooledPixels(NamedTuple):
    """What has been read of the pixels of B images so far: sums that can be added up tile by tile.

    Attributes
    ----------
    peak : torch.Tensor, shape (B, H K), float32 at least
        Largest key; -inf where no pixel was read.
    weight : torch.Tensor, shape (B, H K)
        Sum of exp(key - peak).
    values : torch.Tensor, shape (B, H K, H D)
        Sum of exp(key - peak) times value; only keys and values of one head mean anything.
    """

    peak: torch.Tensor
    weight: torch.Tensor
    values: torch.Tensor

    def merged(self, groups: torch.Tensor, n_groups: int) -> PooledPixels:
        """The sums of the images of each group; `groups` (B,), int64, says which group each image is of."""
        rows = groups[:, None].expand_as(self.peak)
        peak = self.peak.new_full((n_groups, self.peak.shape[1]), -torch.inf).scatter_reduce(0, rows, self.peak, "amax")
        # Images without pixels: exp(-inf) is the zero that they weigh.
        factor = (self.peak - peak.masked_fill(peak == -torch.inf, 0)[groups]).exp()
        weight = torch.zeros_like(peak).index_add(0, groups, self.weight * factor)
        shape = (n_groups, *self.values.shape[1:])
        values = self.values.new_zeros(shape).index_add(0, groups, self.values * factor[..., None])
        return PooledPixels(peak, weight, values)

    def plus(self, other: PooledPixels) -> PooledPixels:
        """The sums over the pixels of both, image by image."""
        both = PooledPixels(*(torch.cat(pair) for pair in zip(self, other, strict=True)))
        rows = torch.arange(len(self.peak), device=self.peak.device)
        return both.merged(rows.repeat(2), len(rows))

    @property
    def state(self) -> torch.Tensor:
        """Values averaged with the softmax of the keys, (B, H K, H D); zero where no pixel was read."""
        return self.values / self.weight.masked_fill(self.weight == 0, 1)[..., None]


class ImageLinearAttention(nn.Module):
    """Every output pixel reads one state pooled over all pixels, at linear cost.

    Convolutions make queries and keys (key_dim channels a head) and values (value_dim). Both queries and keys are
    multiplied by key_dim^(-1/4); keys are softmaxed over pixels, queries over channels; each pixel's query reads the
    pooled keys x values matrix, and a last convolution mixes the heads.

    Parameters
    ----------
    chan : int
        Channels of the input.
    chan_out : int or None
        Channels of the output; None: `chan`.
    kernel_size, padding : int
        Of all convolutions, the one that mixes the heads too.
    stride : int
        Of the convolutions of queries, keys and values.
    key_dim, value_dim : int
        Channels per head.
    heads : int
    norm_queries : bool
        Softmax over the channels of each query.

    Notes
    -----
    For N pixels and H heads of K and D channels, time O(N H K D) and memory O(N H (K + D)).

    A mask is carried through a convolution by the pixel under the middle of its window: output pixel (i, j) is masked
    when input pixel (s i - p + (k - 1) // 2, s j - p + (k - 1) // 2) is masked or lies outside the image. So with odd
    kernels of padding (k - 1) / 2 and stride 1 the mask stays what it was.

    Context keys are scaled like those of pixels (the reference transformer, LAT, leaves them unscaled).

    References
    ----------
    Shen et al. 2021, "Efficient attention: attention with linear complexities", equation 5.

    Examples
    --------
    >>> import torch
    >>> from protlat.nn.image_attention import ImageLinearAttention
    >>> layer = ImageLinearAttention(16, chan_out=4, kernel_size=3, padding=1, stride=2, value_dim=8, heads=2)
    >>> layer(torch.randn(1, 16, 10, 7)).shape
    torch.Size([1, 4, 5, 4])
    """

    def __init__(
        self,
        chan: int,
        chan_out: int | None = None,
        kernel_size: int = 1,
        padding: int = 0,
        stride: int = 1,
        key_dim: int = 64,
        value_dim: int = 64,
        heads: int = 8,
        norm_queries: bool = True,
    ) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.heads, self.norm_queries = key_dim, value_dim, heads, norm_queries
        self.sizes = [heads * key_dim, heads * key_dim, heads * value_dim]
        self.project = nn.Conv2d(chan, sum(self.sizes), kernel_size, stride, padding)
        self.mix = nn.Conv2d(heads * value_dim, chan if chan_out is None else chan_out, kernel_size, 1, padding)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, context: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend.

        Parameters
        ----------
        x : torch.Tensor, shape (B, C, H, W)
        mask : torch.Tensor, shape (B, H, W), bool, or None
            True = pixel. Masked pixels are not read, and the output is zero there.
        context : torch.Tensor, shape (B, C, M), or None
            Further keys and values: M vectors without neighbours, so that only the middle of a kernel acts on them.

        Returns
        -------
        torch.Tensor, shape (B, C', H', W')
            The convolved size: of `project`, then of `mix`.

        Raises
        ------
        ConfigError
            A mask or context of another shape than x asks for.
        """
        self._check(x, mask, context)
        inside = None
        if mask is not None:
            x = x.masked_fill(~mask[:, None], 0)
            inside = reduced_mask(mask, self.project)
        kernels = self._kernels()
        conv = self.project
        q, k, v = (F.conv2d(x, *kernel, conv.stride, conv.padding) for kernel in kernels)
        batch, _, height, width = q.shape
        state = self._state(k.flatten(2), v.flatten(2), kernels[1:], inside, context)
        # (B H, D, K) @ (B H, K, N): values come out in the layout of an image.
        queries = q.view(batch * self.heads, self.key_dim, -1)
        queries = queries.softmax(1) if self.norm_queries else queries
        out = torch.bmm(state.transpose(1, 2), queries).view(batch, -1, height, width)
        if inside is None or mask is None:
            return self.mix(out)
        mixed = self.mix(out.masked_fill(~inside[:, None], 0))
        return mixed.masked_fill(~reduced_mask(inside, self.mix)[:, None], 0)

    def pool(self, x: torch.Tensor, mask: torch.Tensor) -> PooledPixels:
        """Read the pixels of tiles, for a state over several of them; takes ``kernel_size`` 1 and ``stride`` 1.

        ``read(x, pool(x, mask).state)`` is ``forward(x, mask)`` at the pixels of the mask.

        Parameters
        ----------
        x : torch.Tensor, shape (B, C, H, W)
            Finite everywhere. Fastest in the memory format channels_last.
        mask : torch.Tensor, shape (B, H, W), bool
            Pixels to read: those of a halo, which belong to other tiles, are left out here.

        Notes
        -----
        All heads are multiplied at once, (H K) x (H D), and the blocks of unlike heads left unused: for narrow heads one
        larger product takes less time than H small ones. Sums are float32 at least.
        """
        self._check(x, mask, None)
        self._require_pixelwise()
        _, keys, values = self._kernels()
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)
        k = F.linear(pixels, keys[0].flatten(1), keys[1])
        k = k.to(torch.promote_types(k.dtype, torch.float32)).masked_fill(~mask.flatten(1)[..., None], -torch.inf)
        peak = k.detach().amax(1)
        k = (k - peak.masked_fill(peak == -torch.inf, 0)[:, None]).exp()
        v = F.linear(pixels, values[0].flatten(1), values[1]).to(k.dtype)
        return PooledPixels(peak, k.sum(1), k.transpose(1, 2) @ v)

    def read(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """What every pixel of tiles (B, C, H, W) reads of a state (B, H K, H D), that of `PooledPixels`."""
        self._require_pixelwise()
        weight, bias = self._kernels()[0]
        q = F.linear(x.permute(0, 2, 3, 1), weight.flatten(1), bias)
        if self.norm_queries:
            q = q.unflatten(-1, (self.heads, self.key_dim)).softmax(-1).flatten(-2)
        # Mixed before it is read: (H K) x C is smaller than the heads of all pixels.
        head = torch.arange(self.heads, device=x.device)
        own = head.repeat_interleave(self.key_dim)[:, None] == head.repeat_interleave(self.value_dim)
        mixed = state.masked_fill(~own, 0) @ self.mix.weight.flatten(1).T.to(state.dtype)
        assert self.mix.bias is not None
        out = torch.matmul(q.flatten(1, 2), mixed.to(q.dtype)).view(*q.shape[:3], -1) + self.mix.bias
        return out.permute(0, 3, 1, 2)

    def _require_pixelwise(self) -> None:
        if self.project.kernel_size != (1, 1) or self.project.stride != (1, 1) or self.project.padding != (0, 0):
            raise ConfigError(
                "tiles: kernel_size and stride must be 1 and padding 0; put convolutions beside this layer"
            )

    def _kernels(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Weights and biases of queries, keys and values; scaled here, where that is no pass over the pixels."""
        assert self.project.bias is not None
        parts = zip(self.project.weight.split(self.sizes), self.project.bias.split(self.sizes), strict=True)
        scales = (self.key_dim**-0.25, self.key_dim**-0.25, 1.0)
        return [(weight * scale, bias * scale) for (weight, bias), scale in zip(parts, scales, strict=True)]

    def _state(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        kernels: list[tuple[torch.Tensor, torch.Tensor]],
        inside: torch.Tensor | None,
        context: torch.Tensor | None,
    ) -> torch.Tensor:
        """Values pooled by keys, (B H, K, D), from k (B, H K, N) and v (B, H D, N)."""
        if inside is not None:
            # Weights there are zero, but zero times what is not a number is not zero.
            v = v.masked_fill(~inside.flatten(1)[:, None], 0)
            k = k.masked_fill(~inside.flatten(1)[:, None], -torch.inf)
        if context is not None:
            middle = (self.project.kernel_size[0] - 1) // 2
            more = [F.conv1d(context, weight[:, :, middle, middle, None], bias) for weight, bias in kernels]
            k, v = (torch.cat(pair, dim=2) for pair in ((k, more[0]), (v, more[1])))
        # The softmax is taken in float32 inside, whatever the dtype.
        features = k.softmax(2)
        if inside is not None and context is None:
            # An image without any pixel has no key: it reads zero.
            features = features.masked_fill(~inside.flatten(1).any(1)[:, None, None], 0)
        features, v = (x.reshape(-1, size, x.shape[2]) for x, size in ((features, self.key_dim), (v, self.value_dim)))
        return torch.bmm(features, v.transpose(1, 2))

    def _check(self, x: torch.Tensor, mask: torch.Tensor | None, context: torch.Tensor | None) -> None:
        batch, chan = x.shape[:2]
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, *x.shape[2:])):
            raise ConfigError(
                f"mask: expected bool of shape {(batch, *x.shape[2:])}, got {mask.dtype} of {tuple(mask.shape)}"
            )
        if context is not None and (context.dim() != 3 or context.shape[:2] != (batch, chan)):
            raise ConfigError(f"context: expected shape ({batch}, {chan}, M), got {tuple(context.shape)}")


def reduced_mask(mask: torch.Tensor, conv: nn.Conv2d) -> torch.Tensor:
    """Mask of a convolution's output: that of the pixel under the middle of each window, False outside the image.

    Parameters
    ----------
    mask : torch.Tensor, shape (B, H, W), bool
    conv : nn.Conv2d

    Returns
    -------
    torch.Tensor, shape (B, H', W'), bool
    """
    for axis, (size, stride, padding) in enumerate(zip(conv.kernel_size, conv.stride, conv.padding, strict=True), 1):
        assert isinstance(padding, int)
        n = mask.shape[axis]
        middle = torch.arange((n + 2 * padding - size) // stride + 1, device=mask.device) * stride
        middle = middle - padding + (size - 1) // 2
        shape = [1, 1, 1]
        shape[axis] = -1
        mask = mask.index_select(axis, middle.clamp(0, n - 1)) & ((middle >= 0) & (middle < n)).view(shape)
    return mask
