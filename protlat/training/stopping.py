"""Stopping on request: SIGTERM and Ctrl-C end a run after the step that is being computed."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)


class StopRequest:
    """While open, remembers the first SIGTERM or SIGINT instead of dying of it; a second Ctrl-C ends the process at once.

    What follows within a second is not a second wish: on Ctrl-C, DeepSpeed's launcher sends SIGTERM to processes that the
    terminal has already told.

    Attributes
    ----------
    signal : signal.Signals or None
        What was received.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._first_s = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python delivers signals to the main thread only; elsewhere the caller's handling stays.
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGTERM, signal.SIGINT):
                self._before[kind] = signal.signal(kind, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.signal is None:
            self.signal, self._first_s = signal.Signals(number), now_s
            log.warning("%s: saving a checkpoint after this step, then stopping", self.signal.name)
        elif number == signal.SIGINT and now_s - self._first_s > 1:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
        self._before = {}

    def __exit__(self, *exception: object) -> None:
        self._restore()
