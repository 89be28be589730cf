"""Signals during training."""

from __future__ import annotations

import os
import signal

import pytest

from protlat.training import stopping
from protlat.training.stopping import StopRequest


def test_the_first_signal_is_remembered_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest() as request:
        assert request.signal is None
        os.kill(os.getpid(), signal.SIGINT)
        # The launcher's own signal follows at once.
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.signal == signal.SIGINT
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_later_second_ctrl_c_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(clock))
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
