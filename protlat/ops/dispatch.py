"""Picks one implementation of an operation and says so once."""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

import torch

log = logging.getLogger(__name__)

PooledImplementation = Literal["auto", "split", "chunked"]


def pick_pooled(wanted: PooledImplementation, device: torch.device) -> str:
    """ "split" on CPU and "chunked" elsewhere, unless one is asked for by name."""
    if wanted != "auto":
        return wanted
    chosen = "split" if device.type == "cpu" else "chunked"
    if not torch.compiler.is_compiling():
        _say(device.type, chosen)
    return chosen


@cache
def _say(device_type: str, chosen: str) -> None:
    log.debug("global attention on %s: implementation %s", device_type, chosen)
