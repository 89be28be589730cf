"""Pieces made in this process or in several, in input order either way."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from protlat.alphabet import Alphabet
from protlat.data.records import SequenceReport
from protlat.errors import ProtlatError

from .config import PrepConfig
from .pieces import PieceInfo, PieceMaker
from .readers import Work, block_of

# Below this a second process costs more to start than it saves.
PARALLEL_BYTES = 50_000_000
_maker: PieceMaker | None = None


def choose_workers(config: PrepConfig, size_bytes: int) -> int:
    """Processes to use: as asked, else one per core for large inputs, at most 8."""
    if config.workers:
        return config.workers
    if size_bytes < PARALLEL_BYTES:
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Each worker holds a few blocks; eight stay well under the memory limit.
    return min(available, 8)


def _start(config: PrepConfig, alphabet: Alphabet, folder: Path) -> None:
    global _maker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _maker = PieceMaker(config, alphabet, folder)


def _end_with_parent() -> None:
    """Leave when the main process is gone: one that was killed cannot tell its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run(work: Work) -> PieceInfo:
    assert _maker is not None
    return make_piece(_maker, work)


def make_piece(maker: PieceMaker, work: Work) -> PieceInfo:
    """One block to one piece."""
    report = SequenceReport()
    block = block_of(work, report)
    return maker.make(block, report, work.source, work.block)


def make_pieces(
    works: Iterable[Work], config: PrepConfig, alphabet: Alphabet, folder: Path, n_workers: int
) -> Iterator[PieceInfo]:
    """Make pieces of all work, in order; at most two blocks per worker are under way.

    Raises
    ------
    SequenceError
        From the first block, in input order, that breaks a policy.
    ProtlatError
        A worker was killed.
    """
    if n_workers <= 1:
        maker = PieceMaker(config, alphabet, folder)
        for work in works:
            yield make_piece(maker, work)
        return
    # Forking would copy this process's threads in an unknown state; a fresh interpreter has none.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, context, _start, (config, alphabet, folder)) as pool:
        pending: deque[Future[PieceInfo]] = deque()
        try:
            for work in works:
                pending.append(pool.submit(_run, work))
                while len(pending) >= 2 * n_workers or (pending and pending[0].done()):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise ProtlatError(
                "a worker process was killed from outside, probably for lack of memory; the same command with fewer --workers goes on"
            ) from None
        finally:
            for future in pending:
                future.cancel()
