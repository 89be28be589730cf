"""How long does the command take to answer before it has done anything?

python -m benchmarks.bench_startup [--short]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.common import parser, report, table

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "protlat --help": [sys.executable, "-m", "protlat", "--help"],
    "protlat embed --help": [sys.executable, "-m", "protlat", "embed", "--help"],
    "python -c 'import torch'": [sys.executable, "-c", "import torch"],
    "python -c 'import transformers; transformers.EsmModel'": [
        sys.executable,
        "-c",
        "import transformers; transformers.EsmModel",
    ],
}


def main() -> None:
    options = parser(__doc__).parse_args()
    repeats = options.repeats or (5 if options.short else 11)
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for round_number in range(repeats + 1):
        for name, command in COMMANDS.items():
            start_s = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if round_number:
                seconds[name].append(time.perf_counter() - start_s)
    rows = [(f"`{name}`", f"{statistics.median(times):.2f} s") for name, times in seconds.items()]
    report("Start-up", table(("command", "median"), rows), options.results)


if __name__ == "__main__":
    main()
