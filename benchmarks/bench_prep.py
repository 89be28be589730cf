"""FASTA to shards: protlat from file to shards on disk, beside parsers alone (Biopython's SeqIO and SimpleFastaParser, pyfastx).

Every contender runs in this one process tree on the same file, in alternation; medians and ratios are printed and appended
to ``benchmarks/RESULTS.md``. Rates are given by processor time of the process and its children (which says what one core
does, whoever else uses the machine) and by wall time.

Run: ``python -m benchmarks.bench_prep [FASTA]``; without a file a made-up one of 100 MB is used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "RESULTS.md"

# What each contender does with the file; run as `python -c` so that every one starts alike.
CONTENDERS = {
    "protlat prep, end to end": (
        "from protlat.data_prep.config import PrepConfig\nfrom protlat.data_prep.flow import run\n"
        "import pyarrow, pyarrow.compute\n",
        "run(PrepConfig(inputs=(path,), output=folder + '/shards', workers=1))",
    ),
    "protlat stream_sequences": (
        "from protlat.data.fasta import stream_sequences\n",
        "n = sum(len(record.residues) for record in stream_sequences([path]))",
    ),
    "Biopython SeqIO.parse alone": (
        "from Bio import SeqIO\n",
        "n = sum(len(record.seq) for record in SeqIO.parse(path, 'fasta'))",
    ),
    "Biopython SimpleFastaParser alone": (
        "from Bio.SeqIO.FastaIO import SimpleFastaParser\n",
        "with open(path) as handle: n = sum(len(sequence) for _, sequence in SimpleFastaParser(handle))",
    ),
    "pyfastx parse alone": (
        "import pyfastx\n",
        "n = sum(len(sequence) for _, sequence in pyfastx.Fastx(path))",
    ),
}
_SCRIPT = """
import json, logging, os, resource, sys, time
logging.disable(logging.CRITICAL)
path, folder = sys.argv[1:3]
{imports}
def cpu_s():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system
wall, cpu = time.perf_counter(), cpu_s()
{work}
wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{"wall_s": wall, "cpu_s": cpu, "peak_mb": peak}}))
"""


def make_fasta(path: Path, size_bytes: int) -> None:
    """Random proteins with the length spread of UniProt, 60 columns."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)
    with open(path, "wb") as handle:
        number = 0
        while handle.tell() < size_bytes:
            sequence = rng.choice(letters, int(rng.lognormal(5.7, 0.7)) + 30).tobytes()
            lines = [sequence[i : i + 60] for i in range(0, len(sequence), 60)]
            handle.write(
                b">sp|P%05d|MADE_UP made-up protein number %d OS=Nothing\n" % (number, number)
                + b"\n".join(lines)
                + b"\n"
            )
            number += 1


def measure(name: str, path: Path) -> dict[str, float]:
    """One run of a contender in a process of its own."""
    imports, work = CONTENDERS[name]
    script = _SCRIPT.format(imports=imports, work=work)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        done = subprocess.run(
            [sys.executable, "-c", script, str(path), folder], capture_output=True, text=True, check=True
        )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fasta", nargs="?", help="plain FASTA file (default: 100 MB made up)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="20 MB, three repeats")
    arguments = parser.parse_args()
    repeats = 3 if arguments.short else arguments.repeats
    with tempfile.TemporaryDirectory() as folder:
        path = Path(arguments.fasta or Path(folder) / "made_up.fasta").absolute()
        if arguments.fasta is None:
            make_fasta(path, 20_000_000 if arguments.short else 100_000_000)
        size_mb = path.stat().st_size / 1e6
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
        for _ in range(repeats):
            for name in CONTENDERS:
                runs[name].append(measure(name, path))
    base = statistics.median(run["cpu_s"] for run in runs["Biopython SeqIO.parse alone"])
    lines = [
        f"\n## FASTA to shards ({date.today()})",
        f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {size_mb:.0f} MB of plain FASTA, "
        f"one process each, {repeats} runs in alternation, medians; load average {os.getloadavg()[0]:.1f}.\n",
        "| what | MB/s of processor time | ratio to SeqIO | MB/s of wall time | peak memory, MB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, results in runs.items():
        cpu, wall, peak = (statistics.median(run[key] for run in results) for key in ("cpu_s", "wall_s", "peak_mb"))
        lines.append(f"| {name} | {size_mb / cpu:.0f} | {base / cpu:.2f} | {size_mb / wall:.0f} | {peak:.0f} |")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    with open(RESULTS, "a", encoding="utf-8") as handle:
        handle.write(text)


if __name__ == "__main__":
    started = time.monotonic()
    main()
    sys.stderr.write(f"{time.monotonic() - started:.0f} s in all\n")
