"""Contact maps from residue vectors: whole where that fits, tile by tile in bounded memory where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from protlat.models.contact_head import ContactHead, ResidueParts, Tiles
from protlat.nn.image_attention import PooledPixels
from protlat.nn.pair_block import PairBlock
from protlat.tasks.pairs import MIN_SEPARATION

# Pixels to a side: memory grows with the square (measured: 160 MB above the start at 128, 520 MB at 256), the share of work that
# halos add falls with it.
TILE = 128


@dataclass(frozen=True)
class MapTile:
    """A rectangle of the upper half of a map.

    Attributes
    ----------
    rows, columns : slice
        Residues.
    logits : numpy.ndarray, shape (R, C), float32
        Log odds of a contact; -inf where the row's residue is not before the column's.
    """

    rows: slice
    columns: slice
    logits: np.ndarray


class Pairs(NamedTuple):
    """Some pairs of a chain, the most probable first.

    Attributes
    ----------
    first, second : numpy.ndarray, shape (K,), int64
        0-based residues, first < second.
    logit : numpy.ndarray, shape (K,), float32
        Log odds of a contact.
    """

    first: np.ndarray
    second: np.ndarray
    logit: np.ndarray

    @property
    def probability(self) -> np.ndarray:
        """Of a contact, float32."""
        return sigmoid(self.logit)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities of log odds, float32, without overflow."""
    wide = logits.astype(np.float64)
    found: np.ndarray = (0.5 * (1 + np.tanh(wide / 2))).astype(np.float32)
    return found


class ContactPredictor:
    """Runs a contact head over chains.

    Parameters
    ----------
    head : ContactHead
        In evaluation mode, on its device.
    tile : int
        Pixels to a side of what is computed at once; chains up to this length are computed whole.

    Notes
    -----
    In tiles, the pooled state that a block reads is summed over all tiles first, so every block costs a pass over the map
    in which the blocks before it are computed again: B (B + 1) / 2 + B block passes in place of B for B blocks, in memory
    that does not grow with the chain. A tile is computed with a halo as wide as its convolutions reach, so that the result
    is that of the whole map.
    """

    def __init__(self, head: ContactHead, tile: int = TILE) -> None:
        self.head, self.tile = head, tile
        self.device = next(head.parameters()).device

    def tiles(self, vectors: np.ndarray, index: np.ndarray | None = None) -> Iterator[MapTile]:
        """The upper half of a map, tile by tile.

        Parameters
        ----------
        vectors : numpy.ndarray, shape (L, E), float
        index : numpy.ndarray, shape (L,), int64, or None
            Number of each residue along the chain; None: 0 to L - 1.
        """
        n = len(vectors)
        with torch.inference_mode():
            dtype = next(self.head.parameters()).dtype
            given = torch.tensor(np.asarray(vectors), device=self.device, dtype=dtype)
            parts = self.head.read([given], [np.arange(n) if index is None else index])
            if n <= self.tile:
                whole = torch.arange(n, device=self.device)[None]
                tiles = Tiles(whole, whole, torch.zeros(1, dtype=torch.int64, device=self.device))
                yield self._finished(self.head(parts, tiles), tiles, slice(0, n), slice(0, n))
                return
            states: list[torch.Tensor | None] = []
            for depth, block in enumerate(self.head.blocks):
                assert isinstance(block, PairBlock)
                states.append(self._state(parts, block, depth, states) if block.attends else None)
            for rows, columns in self._plan(n):
                x, tiles, classes = self._computed(parts, rows, columns, states)
                x, classes, tiles = _core(x, classes, tiles, rows, columns)
                yield self._finished(self.head.answer(x, classes), tiles, rows, columns)

    def logits(self, vectors: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """The whole map: log odds of a contact, shape (L, L), float32, symmetric; arguments as of `tiles`."""
        n = len(vectors)
        found = np.empty((n, n), dtype=np.float32)
        for tile in self.tiles(vectors, index):
            upper = np.isfinite(tile.logits)
            found[tile.rows, tile.columns][upper] = tile.logits[upper]
            found[tile.columns, tile.rows][upper.T] = tile.logits.T[upper.T]
        return found

    def top(
        self, vectors: np.ndarray, n_pairs: int, index: np.ndarray | None = None, min_separation: int = MIN_SEPARATION
    ) -> Pairs:
        """The most probable pairs, without the map in memory.

        Parameters
        ----------
        vectors, index
            As of `tiles`.
        n_pairs : int
            How many, or all that there are.
        min_separation : int
            Along the chain.
        """
        numbers = np.arange(len(vectors)) if index is None else index
        best = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        for tile in self.tiles(vectors, index):
            apart = numbers[None, tile.columns] - numbers[tile.rows, None]
            rows, columns = np.nonzero((apart >= min_separation) & np.isfinite(tile.logits))
            logits = tile.logits[rows, columns]
            first = np.concatenate([best.first, rows + tile.rows.start])
            second = np.concatenate([best.second, columns + tile.columns.start])
            best = _best(Pairs(first, second, np.concatenate([best.logit, logits])), n_pairs)
        return best

    def _plan(self, n: int) -> Iterator[tuple[slice, slice]]:
        """Tiles that hold a pixel of the upper half."""
        starts = range(0, n, self.tile)
        for row in starts:
            for column in starts:
                if column >= row:
                    yield slice(row, min(row + self.tile, n)), slice(column, min(column + self.tile, n))

    def _state(
        self, parts: ResidueParts, block: PairBlock, depth: int, states: list[torch.Tensor | None]
    ) -> torch.Tensor:
        """What the pixels of the whole map leave in block `depth`, given the states of the blocks before it."""
        pooled: PooledPixels | None = None
        for rows, columns in self._plan(len(parts.numbers)):
            x, tiles, _ = self._computed(parts, rows, columns, states[:depth])
            found = block.pool(x, tiles.mask & _inside(tiles, rows, columns))
            pooled = found if pooled is None else pooled.plus(found)
        assert pooled is not None
        return pooled.state

    def _computed(
        self, parts: ResidueParts, rows: slice, columns: slice, states: list[torch.Tensor | None]
    ) -> tuple[torch.Tensor, Tiles, torch.Tensor]:
        """A tile and its halo behind the first ``len(states)`` blocks, exact inside the tile."""
        n, blocks = len(parts.numbers), list(self.head.blocks)[: len(states)]
        halo = sum(block.reach for block in blocks)  # type: ignore[misc]  # a PairBlock's
        sides = [
            torch.arange(max(side.start - halo, 0), min(side.stop + halo, n), device=self.device)[None]
            for side in (rows, columns)
        ]
        tiles = Tiles(sides[0], sides[1], torch.zeros(1, dtype=torch.int64, device=self.device))
        x, classes = self.head.pixels(parts, tiles)
        mask = tiles.mask
        for block, state in zip(blocks, states, strict=True):
            x = block(x, mask, state)
        return x, tiles, classes

    def _finished(self, logits: torch.Tensor, tiles: Tiles, rows: slice, columns: slice) -> MapTile:
        found = self.head.contact_logits(logits)[0].masked_fill(~tiles.mask[0], -torch.inf)
        return MapTile(rows, columns, found.float().cpu().numpy())


def _inside(tiles: Tiles, rows: slice, columns: slice) -> torch.Tensor:
    """Pixels of a tile that are not its halo, (1, H, W)."""
    is_row = (tiles.rows >= rows.start) & (tiles.rows < rows.stop)
    is_column = (tiles.columns >= columns.start) & (tiles.columns < columns.stop)
    return is_row[:, :, None] & is_column[:, None]


def _core(
    x: torch.Tensor, classes: torch.Tensor, tiles: Tiles, rows: slice, columns: slice
) -> tuple[torch.Tensor, torch.Tensor, Tiles]:
    """A tile without its halo."""
    top, left = rows.start - int(tiles.rows[0, 0]), columns.start - int(tiles.columns[0, 0])
    down, across = slice(top, top + rows.stop - rows.start), slice(left, left + columns.stop - columns.start)
    core = Tiles(tiles.rows[:, down], tiles.columns[:, across], tiles.chains)
    return x[:, :, down, across], classes[:, down, across], core


def _best(pairs: Pairs, n_pairs: int) -> Pairs:
    """The `n_pairs` of highest score; equal scores by residue, so that the choice does not depend on tiles."""
    order = np.lexsort((pairs.second, pairs.first, -pairs.logit))[:n_pairs]
    return Pairs(pairs.first[order], pairs.second[order], pairs.logit[order])
