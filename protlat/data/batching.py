"""Which sequences form a batch, which rank gets it, and reading ahead while the model computes."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.data.random_streams import Purpose, stream

T = TypeVar("T")


class BatchingConfig(Config):
    """How sequences are gathered into batches."""

    tokens_per_batch: int = Field(4096, ge=3)
    """Most tokens of one batch; each rank computes `engine.accumulate` batches a step."""
    max_length: int | None = Field(None, ge=3)
    """Most tokens of one sequence that are read at a time, specials included (null: a whole batch)."""
    long: Literal["crop", "pieces", "carry"] = "crop"
    """What is longer: crop (a random part each epoch), pieces (all of it, in pieces), carry (causal: state goes on to the next)."""
    prefetch: int = Field(4, ge=1)
    """Batches that are prepared ahead, in a thread."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_length is not None and self.max_length > self.tokens_per_batch:
            raise ValueError(
                f"max_length {self.max_length} does not fit a batch of {self.tokens_per_batch} tokens; raise "
                f"tokens_per_batch (--tokens-per-batch)"
            )
        return self

    @property
    def crop_length(self) -> int:
        """Most tokens of one sequence at a time."""
        return self.tokens_per_batch if self.max_length is None else self.max_length


@dataclass(frozen=True)
class Position:
    """The next batch of the whole run: an epoch and a batch of it, counted over all ranks."""

    epoch: int = 0
    batch: int = 0


class BatchPlan:
    """The batches of every epoch, before they are dealt to ranks.

    The order of sequences depends on (seed, epoch) only; they are cut, in that order, into batches of at most `budget`
    tokens. Epochs follow each other without a gap: a step that an epoch's last batches do not fill takes the first
    batches of the next, so that no sequence is left out and no rank waits for a batch that does not come.

    Parameters
    ----------
    lengths : numpy.ndarray, shape (N,), int64
        Tokens of each sequence, with specials, each at most `budget`.
    budget : int
        Most tokens of a batch.
    seed : int
    shuffle : bool
        False keeps the order of the split.
    """

    def __init__(self, lengths: np.ndarray, budget: int, seed: int, shuffle: bool = True) -> None:
        if len(lengths) == 0 or int(lengths.max()) > budget:
            raise ValueError("a plan needs at least one sequence, and none longer than the budget")
        self.lengths, self.budget, self.seed, self.shuffle = lengths, budget, seed, shuffle
        # The prefetch thread and the main thread may stand in two epochs at once.
        self._made: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._lock = threading.Lock()

    def epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Order of sequences, shape (N,), and where its batches begin and end, shape (K + 1,)."""
        with self._lock:
            if epoch not in self._made:
                order = np.arange(len(self.lengths))
                if self.shuffle:
                    order = stream(self.seed, Purpose.ORDER, epoch).permutation(len(self.lengths))
                while len(self._made) > 1:
                    self._made.pop(next(iter(self._made)))
                self._made[epoch] = (order, cut_by_tokens(self.lengths[order], self.budget))
            return self._made[epoch]

    def n_batches(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""
        return len(self.epoch(epoch)[1]) - 1

    def advance(self, position: Position, n_batches: int) -> Position:
        """Where the run stands after `n_batches` more batches."""
        epoch, batch = position.epoch, position.batch + n_batches
        while batch >= self.n_batches(epoch):
            batch -= self.n_batches(epoch)
            epoch += 1
        return Position(epoch, batch)

    def walk(self, start: Position, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, np.ndarray]]:
        """Batches of one rank from `start` on, without end: the epoch and the indices of the sequences.

        Batch k after `start` goes to rank k mod `world_size`.
        """
        position, turn = start, 0
        while True:
            order, bounds = self.epoch(position.epoch)
            for batch in range(position.batch, len(bounds) - 1):
                if turn % world_size == rank:
                    yield position.epoch, order[bounds[batch] : bounds[batch + 1]]
                turn += 1
            position = Position(position.epoch + 1, 0)

    def once(self, epoch: int = 0) -> Iterator[np.ndarray]:
        """Indices of each batch of one epoch."""
        order, bounds = self.epoch(epoch)
        for begin, end in itertools.pairwise(bounds):
            yield order[begin:end]


def cut_by_tokens(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Cut a row of sequences into batches of at most `budget` tokens.

    Parameters
    ----------
    lengths : numpy.ndarray, shape (N,), int64
        Each at most `budget`.

    Returns
    -------
    numpy.ndarray, shape (K + 1,), int64
        Batch k holds the sequences from bound k to bound k + 1.
    """
    ends = np.cumsum(lengths)
    bounds = [0]
    while bounds[-1] < len(lengths):
        used = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(int(np.searchsorted(ends, used + budget, side="right")))
    return np.array(bounds, dtype=np.int64)


class Prefetcher(Generic[T]):
    """Runs an iterator in a thread, a few items ahead, and measures how long the reader had to wait.

    Use as a context manager, or call `close`, so that the thread ends.

    Parameters
    ----------
    make_items : callable
        Returns the iterator; called in the thread.
    depth : int
        Items made ahead at most.
    """

    _POLL_S = 0.1

    def __init__(self, make_items: Callable[[], Iterator[T]], depth: int) -> None:
        self.wait_s = 0.0
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(make_items,), name="protlat-prefetch", daemon=True)
        self._thread.start()

    def _fill(self, make_items: Callable[[], Iterator[T]]) -> None:
        try:
            for item in make_items():
                if not self._put((item, None)):
                    return
            self._put((None, None))
        except BaseException as error:
            self._put((None, error))

    def _put(self, entry: tuple[T | None, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=self._POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        start_s = time.perf_counter()
        if self._stop.is_set():
            raise StopIteration
        item, error = self._queue.get()
        self.wait_s += time.perf_counter() - start_s
        if error is not None:
            self._stop.set()
            raise error
        if item is None:
            self._stop.set()
            raise StopIteration
        return item

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
