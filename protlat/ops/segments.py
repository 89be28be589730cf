"""The packed batch: where each sequence begins, and what the attention cores derive from it once per batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F

D = TypeVar("D")
# Beyond this, window masks are made again in every layer: at 3 W entries a token they would outweigh the activations.
_MAX_TOKENS_WITH_KEPT_MASK = 65_536


class ChunkTable(NamedTuple):
    """Every sequence cut into chunks of at most C tokens; no chunk holds tokens of two sequences.

    Attributes
    ----------
    rows : torch.Tensor, shape (N, C), int64
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

    rows: torch.Tensor
    valid: torch.Tensor
    segment: torch.Tensor
    inverse: torch.Tensor
    is_view: bool


class RoundedTable(NamedTuple):
    """Every sequence lengthened to one of few lengths.

    Attributes
    ----------
    rows : torch.Tensor, shape (P,), int64
        Packed position of each row; added rows repeat a token of their own sequence.
    added : torch.Tensor, shape (A,), int64
        Rows that are not tokens.
    inverse : torch.Tensor, shape (T,), int64
        Row of each packed token.
    lengths : tuple of int
        New length of each sequence.
    is_view : bool
        True when nothing was added.
    """

    rows: torch.Tensor
    added: torch.Tensor
    inverse: torch.Tensor
    lengths: tuple[int, ...]
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
    offsets : sequence of int, or None
        Position of the first token of each sequence, where earlier tokens were read by earlier calls (see
        `protlat.nn.state`); None: every sequence begins at 0.
    """

    def __init__(
        self, lengths: Sequence[int], device: torch.device | str = "cpu", offsets: Sequence[int] | None = None
    ) -> None:
        self.lengths = tuple(int(n) for n in lengths)
        self.offsets = None if offsets is None else tuple(int(n) for n in offsets)
        if self.offsets is not None and (len(self.offsets) != len(self.lengths) or min(self.offsets) < 0):
            raise ValueError("segments: one offset of at least 0 for each sequence")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"segments need at least one sequence and lengths of at least 1, got {self.lengths[:10]}")
        self.device = torch.device(device)
        self._cache: dict[Hashable, Any] = {}

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
        return self.derive("n_tokens", lambda: sum(self.lengths))

    @property
    def is_uniform(self) -> bool:
        """True when all sequences have one length."""
        return min(self.lengths) == max(self.lengths)

    def derive(self, key: Hashable, make: Callable[[], D]) -> D:
        """A table that depends on the layout alone: made by `make` on first use, then kept under `key`."""
        if key not in self._cache:
            if torch.is_inference_mode_enabled():
                # Tensors made in inference mode could take no part in a later backward pass.
                with torch.inference_mode(False):
                    self._cache[key] = make()
            else:
                self._cache[key] = make()
        return self._cache[key]

    def with_filler(self, n_tokens: int) -> Segments:
        """These sequences and one more of `n_tokens` behind them; made once, so that its tables are kept too."""
        offsets = None if self.offsets is None else (*self.offsets, 0)
        return self.derive(("filler", n_tokens), lambda: Segments((*self.lengths, n_tokens), self.device, offsets))

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """Start of each sequence and the end of the last, shape (S + 1,), int64."""

        def make() -> torch.Tensor:
            return F.pad(torch.tensor(self.lengths).cumsum(0), (1, 0)).to(self.device)

        return self.derive("cu_seqlens", make)

    @property
    def ids(self) -> torch.Tensor:
        """Sequence of every token, shape (T,), int64."""

        def make() -> torch.Tensor:
            return torch.repeat_interleave(torch.arange(len(self)), torch.tensor(self.lengths)).to(self.device)

        return self.derive("ids", make)

    @property
    def rows(self) -> torch.Tensor:
        """Row of every token among those of its sequence in this batch, from 0, shape (T,), int64."""

        def make() -> torch.Tensor:
            return torch.arange(self.n_tokens, device=self.device) - self.cu_seqlens[:-1][self.ids]

        return self.derive("rows", make)

    @property
    def positions(self) -> torch.Tensor:
        """Position of every token in its whole sequence: its row and the sequence's offset, shape (T,), int64."""
        if self.offsets is None:
            return self.rows

        def make() -> torch.Tensor:
            return self.rows + torch.tensor(self.offsets, device=self.device)[self.ids]

        return self.derive("positions", make)

    @property
    def reach(self) -> int:
        """One more than the greatest position."""
        if self.offsets is None:
            return max(self.lengths)
        return max(n + offset for n, offset in zip(self.lengths, self.offsets, strict=True))

    @property
    def is_step(self) -> bool:
        """Whether every sequence has one token in this batch."""
        return self.n_tokens == len(self.lengths)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Neighbouring sequences of one length as (how many, length), in packed order."""
        return self.derive("runs", lambda: tuple((len(list(same)), n) for n, same in groupby(self.lengths)))

    def same_sequence(self, offset: int) -> torch.Tensor | None:
        """Whether the token at i + offset belongs to i's sequence, shape (T, 1), bool.

        None when that holds wherever i + offset is inside the batch (a single sequence), so that callers can skip
        the masking.
        """
        if len(self) == 1:
            return None

        def make() -> torch.Tensor:
            last = torch.tensor(self.lengths, device=self.device)[self.ids]
            target = self.rows + offset
            return ((target >= 0) & (target < last))[:, None]

        return self.derive(("same", offset), make)

    def near_borders(self, distance: int) -> torch.Tensor:
        """Packed positions of the tokens fewer than `distance` tokens from an end of their sequence, int64."""

        def make() -> torch.Tensor:
            last = torch.tensor(self.lengths, device=self.device)[self.ids] - 1
            return ((self.rows < distance) | (last - self.rows < distance)).nonzero().flatten()

        return self.derive(("near_borders", distance), make)

    def rounded(self, multiple: int) -> RoundedTable:
        """Every sequence lengthened to a multiple of `multiple`, and long ones to coarser multiples, by at most 3 %."""
        return self.derive(("rounded", multiple), lambda: self._make_rounded(multiple))

    def _make_rounded(self, multiple: int) -> RoundedTable:
        new_lengths = tuple(rounded_size(n, multiple) for n in self.lengths)
        new = torch.tensor(new_lengths)
        old = torch.tensor(self.lengths)
        starts = F.pad(old.cumsum(0), (1, 0))[:-1]
        new_starts = F.pad(new.cumsum(0), (1, 0))[:-1]
        owner = torch.repeat_interleave(torch.arange(len(self)), new)
        offset = torch.arange(int(new.sum())) - new_starts[owner]
        added = offset >= old[owner]
        rows = starts[owner] + offset.minimum(old[owner] - 1)
        tables = (rows, added.nonzero().flatten(), (~added).nonzero().flatten())
        rows, where, inverse = (t.to(self.device) for t in tables)
        return RoundedTable(rows, where, inverse, new_lengths, new_lengths == self.lengths)

    def chunks(self, size: int) -> ChunkTable:
        """Every sequence cut into chunks of `size` tokens."""
        return self.derive(("chunks", size), lambda: self._make_chunks(size))

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
        is_view = all(n % size == 0 for n in self.lengths)
        index, valid, segment, inverse = (t.to(self.device) for t in (index, valid, segment, inverse))
        return ChunkTable(index, valid, segment, inverse, is_view)

    def window_mask(
        self, size: int, radius: int, blocks: slice, dtype: torch.dtype, causal: bool = False
    ) -> torch.Tensor:
        """What to add to the scores of a slab of query blocks, each against the 3 * size keys around it.

        Parameters
        ----------
        size : int
            Block length W; key row k of block b is packed token (b - 1) * W + k.
        radius : int
            Greatest distance |i - j| that is seen, at most W.
        blocks : slice
            First block and the one after the last, of ceil(T / W) in all.
        dtype : torch.dtype
            Precision of the scores.
        causal : bool
            Only keys at or before the query are seen, and only the 2 * size keys up to the block's end are there.

        Returns
        -------
        torch.Tensor, shape (blocks, 1, W, 3 W), or (1, 1, W, 3 W) when all blocks lie well inside one sequence
            0 where the key is seen, -inf elsewhere; 2 W in place of 3 W when causal. Rows beyond T see themselves, so
            that no row is empty.
        """
        first, last = blocks.start, blocks.stop
        if self._inside_one_sequence((first - 1) * size, (last if causal else last + 1) * size):
            # One band serves all blocks: what keeps a million-token sequence from needing T * 3 W mask entries.
            return self.derive(("band", size, radius, dtype, causal), lambda: self._band(size, radius, dtype, causal))
        if self.n_tokens > _MAX_TOKENS_WITH_KEPT_MASK:
            return self._window_slab(size, radius, first, last, dtype, causal)
        key = ("window", size, radius, first, last, dtype, causal)
        return self.derive(key, lambda: self._window_slab(size, radius, first, last, dtype, causal))

    def _inside_one_sequence(self, start: int, stop: int) -> bool:
        ends = self.derive("ends", lambda: list(accumulate(self.lengths)))
        if start < 0 or stop > ends[-1]:
            return False
        return bisect_right(ends, start) == bisect_right(ends, stop - 1)

    def _band(self, size: int, radius: int, dtype: torch.dtype, causal: bool = False) -> torch.Tensor:
        return _additive(self._near(size, radius, causal), dtype)[None, None]

    def _near(self, size: int, radius: int, causal: bool) -> torch.Tensor:
        """Whether key row k is at most `radius` from query row i of a block, shape (W, 3 W) or (W, 2 W), bool."""

        def make() -> torch.Tensor:
            query = torch.arange(size, device=self.device)
            key = torch.arange(-size, size if causal else 2 * size, device=self.device)
            back = query[:, None] - key[None, :]
            return (back >= 0).logical_and_(back <= radius) if causal else back.abs() <= radius

        return self.derive(("near", size, radius, causal), make)

    def _window_slab(
        self, size: int, radius: int, first: int, last: int, dtype: torch.dtype, causal: bool = False
    ) -> torch.Tensor:
        # Sequence of every row from the block before the first to the block after the last (the last, when causal).
        # Rows before the batch and rows behind it have numbers of their own, so that the latter see each other and no
        # row is empty.
        start, stop = (first - 1) * size, (last if causal else last + 1) * size
        inside = self.ids[max(start, 0) : stop].int()
        owner = F.pad(inside, (max(-start, 0), 0), value=-2)
        owner = F.pad(owner, (0, stop - start - len(owner)), value=-1)
        keys = owner.unfold(0, (2 if causal else 3) * size, size)
        queries = keys[:, size : 2 * size]
        same = keys[:, None, :] == queries[:, :, None]
        return _additive(same.logical_and_(self._near(size, radius, causal)), dtype)[:, None]


def rounded_size(n: int, least_step: int = 1) -> int:
    """The next of 32 to 63 sizes an octave, then of the multiples of 256: at most 3 % more, for steps from `least_step`."""
    step = max(min(1 << max(n.bit_length() - 6, 0), 256), least_step)
    return -(-n // step) * step


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def pack(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rows of a padded (B, L, ...) tensor where `mask` (B, L) is True, end to end: (T, ...)."""
    return x[mask]


def unpack(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Inverse of `pack`: (T, ...) back to (B, L, ...), zeros in the padding."""
    padded = x.new_zeros(*mask.shape, *x.shape[1:])
    padded[mask] = x
    return padded
