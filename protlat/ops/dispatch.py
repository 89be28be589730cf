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
    return wanted if wanted != "auto" else _auto(device.type)


@cache
def _auto(device_type: str) -> str:
    chosen = "split" if device_type == "cpu" else "chunked"
    log.debug("global attention on %s: implementation %s", device_type, chosen)
    return chosen
