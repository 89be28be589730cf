"""Run every benchmark in turn, each in a process of its own, and append the tables to RESULTS.md.

python -m benchmarks.run [--short] [inference training ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.common import RESULTS

NAMES = (
    "inference",
    "training",
    "length",
    "attention",
    "causal",
    "lat",
    "generate",
    "prep",
    "embed",
    "loader",
    "startup",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"Which to run (default: all of {', '.join(NAMES)}).")
    parser.add_argument("--short", action="store_true", help="Fewer sizes and repeats.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="Markdown file to append to.")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; known: {', '.join(NAMES)}")
    failed = []
    for name in options.names or NAMES:
        command = [sys.executable, "-m", f"benchmarks.bench_{name}", "--results", str(options.results)]
        if subprocess.run([*command, *(["--short"] if options.short else [])]).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
