"""Documents read piece after piece: lanes, whose recurrent state is carried from batch to batch."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np

from protlat.data.batching import Position
from protlat.data.pieces import Spans
from protlat.data.random_streams import Purpose, stream


class LanePlan:
    """The batches of a run in which every lane reads documents whole, one behind the other.

    A lane takes `piece` tokens a batch: the next ones of its document and, when that ends, the first ones of the next.
    Documents are handed out in an order that depends on (seed, epoch) only, epoch after epoch without a gap, each to
    the lane that is free first. The n_sets batches of a step (accumulated ones times ranks) are apart: each is a
    set of lanes of its own, so that a batch goes on from the batch of the step before.

    Parameters
    ----------
    lengths : numpy.ndarray, shape (N,), int64
        Tokens of each document.
    n_lanes : int
        Lanes of a batch.
    piece : int
        Tokens of a lane in a batch.
    seed : int
    n_sets : int
        Batches of a step, over all ranks.
    """

    def __init__(self, lengths: np.ndarray, n_lanes: int, piece: int, seed: int, n_sets: int) -> None:
        if len(lengths) == 0 or n_lanes < 1:
            raise ValueError("a plan needs at least one document and one lane")
        self.lengths, self.n_lanes, self.piece, self.seed, self.n_sets = lengths, n_lanes, piece, seed, n_sets
        self._n_batches = -(-int(lengths.sum()) // (n_lanes * piece))

    def n_batches(self, epoch: int) -> int:
        """Batches in which as many tokens are read as all documents hold; lanes do not end an epoch together."""
        return self._n_batches

    def advance(self, position: Position, n_batches: int) -> Position:
        """Where the run stands after `n_batches` more batches."""
        epoch, batch = divmod(self._count(position) + n_batches, self._n_batches)
        return Position(epoch, batch)

    def _count(self, position: Position) -> int:
        return position.epoch * self._n_batches + position.batch

    def walk(self, start: Position, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, Spans]]:
        """Batches of one rank from `start`, the beginning of a step, on, without end: the epoch and the pieces.

        Set k of every step goes to rank k mod `world_size`.
        """
        count = self._count(start)
        for sets in self._steps(count // self.n_sets):
            for number in range(rank, self.n_sets, world_size):
                yield (count + number) // self._n_batches, sets[number]
            count += self.n_sets

    def _documents(self) -> Iterator[int]:
        for epoch in itertools.count():
            yield from stream(self.seed, Purpose.ORDER, epoch).permutation(len(self.lengths)).tolist()

    def _steps(self, first: int) -> Iterator[list[Spans]]:
        """The sets of every step from `first` on. What came before is walked through document by document."""
        documents = self._documents()
        # (step in which the lane is free, lane, tokens it has read by then): within a step, lanes choose in turn.
        free = [(0, lane, 0) for lane in range(self.n_sets * self.n_lanes)]
        held: list[deque[tuple[int, int]]] = [deque() for _ in free]
        for step in itertools.count(first):
            while free[0][0] <= step:
                _, lane, begin = heapq.heappop(free)
                document = next(documents)
                end = begin + int(self.lengths[document])
                if end > step * self.piece:
                    held[lane].append((begin, document))
                heapq.heappush(free, (end // self.piece, lane, end))
            yield [self._set(held, number, step) for number in range(self.n_sets)]

    def _set(self, held: list[deque[tuple[int, int]]], number: int, step: int) -> Spans:
        begin, end = step * self.piece, (step + 1) * self.piece
        pieces: list[tuple[int, int, int, int]] = []
        last = []
        for lane in range(self.n_lanes):
            queue = held[number * self.n_lanes + lane]
            while queue and queue[0][0] + int(self.lengths[queue[0][1]]) <= begin:
                queue.popleft()
            for origin, document in queue:
                start = max(begin - origin, 0)
                stop = min(end - origin, int(self.lengths[document]))
                pieces.append((document, start, stop - start, lane if start else -1))
            last.append(len(pieces) - 1)
        columns = np.array(pieces, dtype=np.int64).T
        return Spans(columns[0], columns[1], columns[2], columns[3], np.array(last, dtype=np.int64))
