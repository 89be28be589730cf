"""The packed batch: where each sequence begins, and what the attention cores derive from it once per batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F


class ChunkTable(NamedTuple):
    """Every sequence cut into chunks of at most C tokens; no chunk holds tokens of two sequences.

    Attributes
    ----------
    index : torch.Tensor, shape (N, C), int64
        Packed position of each chunk row; rows beyond a sequence's end repeat a valid position.
    valid : torch.Tensor, shape (N, C), bool
        True where the row is a token.
    segment : torch.Tensor, shape (N,), int64
        Sequence that the chunk belongs to.
    inverse : torch.Tensor, shape (T,), int64
        Row of the flattened (N * C) table at which each packed token stands.
    is_view : bool
        True when the table is the packed order itself, so that gathering is a reshape.
    """

    index: torch.Tensor
    valid: torch.Tensor
    segment: torch.Tensor
    inverse: torch.Tensor
    is_view: bool


class Segments:
    """Sequences laid end to end in T packed tokens.

    The only place that knows where one sequence ends and the next begins. Derived tables are made on first use and
    kept, so that every layer of a forward pass shares them.

    Parameters
    ----------
    lengths : tuple of int
        Tokens of each sequence, in packed order, each at least 1.
    device : torch.device
        Where derived tensors live.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(int(n) for n in lengths)
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"segments need at least one sequence and lengths of at least 1, got {self.lengths[:10]}")
        self.device = torch.device(device)
        self._cache: dict[object, object] = {}

    @classmethod
    def from_mask(cls, mask: torch.Tensor) -> Segments:
        """Segments of a padded batch.

        Parameters
        ----------
        mask : torch.Tensor, shape (B, L), bool
            True = token; the tokens of each row stand before its padding, at least one a row.
        """
        lengths = mask.sum(1)
        if not bool((mask == (torch.arange(mask.shape[1], device=mask.device) < lengths[:, None])).all()):
            raise ValueError("mask: padding must follow the tokens of each row (True = token)")
        return cls(lengths.tolist(), mask.device)

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Segments({len(self)} sequences, {self.n_tokens} tokens, {self.device})"

    @property
    def n_tokens(self) -> int:
        """T, the number of packed tokens."""
        return sum(self.lengths)

    @property
    def is_uniform(self) -> bool:
        """True when all sequences have one length."""
        return min(self.lengths) == max(self.lengths)

    def _once(self, key: object, make: object) -> object:
        if key not in self._cache:
            assert callable(make)
            self._cache[key] = make()
        return self._cache[key]

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """Start of each sequence and the end of the last, shape (S + 1,), int64."""

        def make() -> torch.Tensor:
            return F.pad(torch.tensor(self.lengths).cumsum(0), (1, 0)).to(self.device)

        return self._once("cu_seqlens", make)  # type: ignore[return-value]

    @property
    def ids(self) -> torch.Tensor:
        """Sequence of every token, shape (T,), int64."""

        def make() -> torch.Tensor:
            return torch.repeat_interleave(torch.arange(len(self)), torch.tensor(self.lengths)).to(self.device)

        return self._once("ids", make)  # type: ignore[return-value]

    @property
    def positions(self) -> torch.Tensor:
        """Position of every token in its sequence, from 0, shape (T,), int64."""

        def make() -> torch.Tensor:
            return torch.arange(self.n_tokens, device=self.device) - self.cu_seqlens[:-1][self.ids]

        return self._once("positions", make)  # type: ignore[return-value]

    def same_sequence(self, offset: int) -> torch.Tensor | None:
        """Whether the token at i + offset belongs to i's sequence, shape (T, 1), bool.

        None when that holds wherever i + offset is inside the batch (a single sequence), so that callers can skip
        the masking.
        """
        if len(self) == 1:
            return None

        def make() -> torch.Tensor:
            last = torch.tensor(self.lengths, device=self.device)[self.ids]
            target = self.positions + offset
            return ((target >= 0) & (target < last))[:, None]

        return self._once(("same", offset), make)  # type: ignore[return-value]

    def chunks(self, size: int) -> ChunkTable:
        """Every sequence cut into chunks of `size` tokens."""
        return self._once(("chunks", size), lambda: self._make_chunks(size))  # type: ignore[return-value]

    def _make_chunks(self, size: int) -> ChunkTable:
        lengths = torch.tensor(self.lengths)
        n_chunks = (lengths + size - 1) // size
        segment = torch.repeat_interleave(torch.arange(len(self)), n_chunks)
        first_chunk = F.pad(n_chunks.cumsum(0), (1, 0))[:-1]
        offset_in_sequence = (torch.arange(len(segment)) - first_chunk[segment]) * size
        rows = offset_in_sequence[:, None] + torch.arange(size)
        valid = rows < lengths[segment, None]
        starts = F.pad(lengths.cumsum(0), (1, 0))[:-1]
        index = starts[segment, None] + rows.minimum(lengths[segment, None] - 1)
        inverse = valid.flatten().nonzero().flatten()
        is_view = bool(valid.all())
        return ChunkTable(*(t.to(self.device) for t in (index, valid, segment, inverse)), is_view)

    def window_mask(self, size: int, radius: int, causal: bool = False) -> torch.Tensor:
        """Which of the 3 * size keys around a block of `size` queries each query may see.

        Parameters
        ----------
        size : int
            Block length W; key row k of block b is packed token (b - 1) * W + k.
        radius : int
            Greatest distance |i - j| that is seen, at most W.
        causal : bool
            Whether later tokens are hidden.

        Returns
        -------
        torch.Tensor, shape (ceil(T / W), W, 3 W), bool
            True = seen. Rows beyond T see themselves, so that no row is empty.
        """
        return self._once(("window", size, radius, causal), lambda: self._make_window(size, radius, causal))  # type: ignore[return-value]

    def _make_window(self, size: int, radius: int, causal: bool) -> torch.Tensor:
        n_blocks = -(-self.n_tokens // size)
        # Ids outside the batch are -1, and those of the padded tail -2: neither equals a sequence's.
        ids = F.pad(self.ids, (size, n_blocks * size - self.n_tokens + size), value=-1)
        query = torch.arange(n_blocks * size, device=self.device).view(n_blocks, size)
        key = torch.arange(n_blocks, device=self.device)[:, None] * size + torch.arange(-size, 2 * size, device=self.device)
        distance = key[:, None, :] - query[:, :, None]
        near = (distance.abs() <= radius) & ((distance <= 0) | (not causal))
        query_ids = ids[query + size][:, :, None]
        seen = near & (ids[key + size][:, None, :] == query_ids) & (query_ids >= 0)
        return seen | (distance == 0)


def pack(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rows of a padded (B, L, ...) tensor where `mask` (B, L) is True, end to end: (T, ...)."""
    return x[mask]


def unpack(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Inverse of `pack`: (T, ...) back to (B, L, ...), zeros in the padding."""
    padded = x.new_zeros(*mask.shape, *x.shape[1:])
    padded[mask] = x
    return padded
