"""How do time and memory of a forward pass grow with length, from 512 to 1,000,000 tokens?

Each measurement is a process of its own, so that its peak memory is its own. A peer is not asked again after a length
that took it longer than the limit or that it could not do.

    python -m benchmarks.bench_length [--short]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import torch

from benchmarks.common import parser, prepare, report, table
from benchmarks.peers import build
from protlat.reporting import peak_memory_bytes

LENGTHS = (512, 2048, 8192, 35_991, 131_072, 524_288, 1_000_000)
SHORT_LENGTHS = (512, 8192, 35_991, 131_072)
LIMIT_S = 240


def measure(name: str, length: int, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of the second pass over one sequence, and peak resident memory of this process in GB."""
    model, forward = build(name, length)
    run = forward(model.to(dtype).eval())
    tokens = torch.randint(4, 24, (1, length))
    with torch.inference_mode():
        # The first pass pays for pages and kernels; a pass of many seconds is not repeated.
        for _ in range(2):
            start_s = time.perf_counter()
            run(tokens)
            seconds = time.perf_counter() - start_s
            if seconds > 30:
                break
    return {"seconds": seconds, "peak_gb": peak_memory_bytes() / 1e9}


def child(name: str, length: int, threads: int) -> dict[str, float] | str:
    """Run `measure` in a process of its own; why not, as text, when it did not end well."""
    command = [sys.executable, "-m", "benchmarks.bench_length", "--one", name, str(length), "--threads", str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_S} s"
    if done.returncode != 0:
        return (
            "out of memory"
            if done.returncode == -9 or "alloc" in done.stderr
            else done.stderr.strip().splitlines()[-1][:60]
        )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--one", nargs=2, metavar=("NAME", "LENGTH"), help="Measure one case and print JSON.")
    options = options_parser.parse_args()
    dtype = prepare(options)
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), dtype)))
        return
    rows = []
    stopped: set[str] = set()
    for length in SHORT_LENGTHS if options.short else LENGTHS:
        cells = []
        for name in ("protlat", "lat", "esm2"):
            if name in stopped:
                cells.append("-")
                continue
            result = child(name, length, options.threads)
            if isinstance(result, str):
                stopped.add(name)
                cells.append(result)
                continue
            if result["seconds"] > 60 and name != "protlat":
                stopped.add(name)
            cells.append(
                f"{result['seconds']:.2f} s, {1e6 * result['seconds'] / length:.0f} us/token, {result['peak_gb']:.2f} GB"
            )
        rows.append((f"{length:,}", *cells))
    body = table(("tokens", "protlat", "LAT", "ESM-2"), rows)
    note = (
        f"\n\nOne sequence, {str(dtype).removeprefix('torch.')}, one process a cell: time of the second pass, time a token, peak memory "
        "of the whole process (Python and libraries included)."
    )
    report("Length: time and memory of one forward pass", body + note, options.results)


if __name__ == "__main__":
    main()
