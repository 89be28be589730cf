"""What every benchmark shares: a description of the machine, alternating runs, medians and ratios, Markdown tables."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from protlat.devices import has_native_bf16, keep_freed_memory

RESULTS = Path(__file__).parent / "RESULTS.md"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--short", action="store_true", help="Fewer sizes and repeats.")
    made.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads for everybody (default: all).")
    made.add_argument("--repeats", type=int, help="Counted runs of each candidate.")
    made.add_argument("--results", type=Path, help="Markdown file to append the table to.")
    return made


def prepare(options: argparse.Namespace) -> torch.dtype:
    """Same threads and allocator settings for protlat and its peers; the working precision of this machine."""
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    torch.manual_seed(0)
    return torch.bfloat16 if has_native_bf16(torch.device("cpu")) else torch.float32


def alternate(candidates: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 3) -> dict[str, list[float]]:
    """Seconds of every run: each round runs every candidate once, so that a slow moment of the machine hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(warmup + repeats):
        for name, function in candidates.items():
            gc.collect()
            start_s = time.perf_counter()
            function()
            elapsed_s = time.perf_counter() - start_s
            if round_number >= warmup:
                seconds[name].append(elapsed_s)
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times faster we are: the median over rounds of their time by ours in the same round."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def machine() -> str:
    """One line: processor, cores, threads, memory, versions."""
    model = platform.processor() or platform.machine()
    flags = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text()
        model = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), model)
        found = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if f" {flag} " in f"{text} "]
        flags = f" ({found[0]})" if found else ""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    packages = ", ".join(
        f"{name} {_version(name)}" for name in ("torch", "linear-attention-transformer", "transformers")
    )
    return (
        f"{model}{flags}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {memory_gb:.0f} GB; "
        f"Python {platform.python_version()}, {packages}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def report(title: str, body: str, results: Path | None) -> None:
    """Print a section and, when asked for, append it to the results file."""
    section = f"## {title}\n\n{date.today().isoformat()}; {machine()}\n\n{body}\n"
    print(section, flush=True)
    if results is not None:
        with results.open("a", encoding="utf-8") as handle:
            handle.write("\n" + section)


def per_second(n_tokens: int, seconds: Sequence[float]) -> str:
    """Tokens per second at the median time, in thousands."""
    return f"{n_tokens / statistics.median(seconds) / 1e3:.1f}k"
