"""The two ceilings of a computer: matrix products and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Large enough that a product runs at full speed and no cache holds the copy.
_SIDE = {"cpu": 2048, "cuda": 8192}
_COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}


@dataclass(frozen=True)
class Ceilings:
    """Measured upper bounds.

    Attributes
    ----------
    dtype : torch.dtype
        Precision of the product.
    flops : float
        Floating-point operations per second of a square matrix product (a multiply-add is two).
    bandwidth : float
        Bytes per second that a copy reads and writes, both counted.
    """

    dtype: torch.dtype
    flops: float
    bandwidth: float


def measure_ceilings(dtype: torch.dtype, device: torch.device, repeats: int = 7) -> Ceilings:
    """Time a square matrix product and a copy; the best of `repeats` runs each, since other work can only slow them.

    Parameters
    ----------
    dtype : torch.dtype
    device : torch.device
    repeats : int
        After one run that is not counted.
    """
    side = _SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    product_s = _best_s(lambda: torch.matmul(a, b, out=out), device, repeats)
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device, repeats)
    return Ceilings(dtype, 2 * side**3 / product_s, 2 * source.numel() / copy_s)


def _best_s(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):
        wait(device)
        start_s = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - start_s)
    return min(seconds[1:])


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was given; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
