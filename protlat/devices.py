"""Where and in which precision to compute."""

from __future__ import annotations

import logging
import os

import torch

from protlat.errors import ConfigError

log = logging.getLogger(__name__)
_CPU_FLAGS_WITH_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def resolve_device(name: str = "auto") -> torch.device:
    """Turn "auto", "cpu", "cuda", "cuda:1" into a device.

    Raises
    ------
    ConfigError
        The name is not a device, or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name}: not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(
            f"--device {name}: {torch.cuda.device_count()} CUDA devices are visible to torch here; use cpu or auto"
        )
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn "auto", "float32", "bfloat16" into a working precision.

    ``auto`` is bfloat16 where the processor multiplies it natively (5 to 7 times faster matrix products than float32
    on such CPUs), float32 elsewhere.
    """
    if name == "auto":
        return torch.bfloat16 if has_native_bf16(device) else torch.float32
    if name not in ("float32", "bfloat16"):
        raise ConfigError(f"dtype {name}: use auto, float32 or bfloat16")
    return torch.float32 if name == "float32" else torch.bfloat16


def has_native_bf16(device: torch.device) -> bool:
    """Whether `device` has matrix instructions for bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    try:
        with open("/proc/cpuinfo") as handle:
            flags = next((line for line in handle if line.startswith(("flags", "Features"))), "")
    except OSError:
        return False
    return not _CPU_FLAGS_WITH_BF16.isdisjoint(flags.split())


def set_threads(n_threads: int | None) -> None:
    """Make this process ready for work on the CPU: allocator and threads.

    Parameters
    ----------
    n_threads : int or None
        CPU threads; None leaves torch's choice, which counts cores and reads OMP_NUM_THREADS.
    """
    keep_freed_memory()
    if n_threads is not None:
        torch.set_num_threads(n_threads)
        os.environ["OMP_NUM_THREADS"] = str(n_threads)


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed blocks for the next tensor instead of handing them back to the system.

    Layer outputs of some megabytes would otherwise be mapped, cleared page by page and unmapped again in every layer,
    which costs more than the arithmetic on virtual machines (measured: 2 to 10 times slower inference).

    Returns
    -------
    bool
        False where the C library is not glibc and nothing was changed.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    # Names and numbers from glibc's <malloc.h>.
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    settings = ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 << 20))
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)
