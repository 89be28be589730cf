"""FASTA to shards: protlat from file to shards on disk, beside parsers alone (Biopython's SeqIO and SimpleFastaParser, pyfastx).

Every contender runs in this one process tree on the same file, in alternation. Rates are given by processor time of the
process and its children (which says what one core does, whoever else uses the machine) and by wall time.

    python -m benchmarks.bench_prep [--short] [FASTA]       without a file a made-up one of 100 MB is used
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import parser, report, table

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
import json, logging, os, sys, time
logging.disable(logging.CRITICAL)
path, folder = sys.argv[1:3]
{imports}
def cpu_s():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system
wall, cpu = time.perf_counter(), cpu_s()
{work}
wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
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
    options_parser = parser(__doc__)
    options_parser.add_argument("fasta", nargs="?", help="Plain FASTA file (default: 100 MB made up, 20 with --short).")
    options = options_parser.parse_args()
    repeats = options.repeats or (3 if options.short else 5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.fasta or Path(folder) / "made_up.fasta").absolute()
        if options.fasta is None:
            make_fasta(path, 20_000_000 if options.short else 100_000_000)
        size_mb = path.stat().st_size / 1e6
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
        for _ in range(repeats):
            for name in CONTENDERS:
                runs[name].append(measure(name, path))
    base = statistics.median(run["cpu_s"] for run in runs["Biopython SeqIO.parse alone"])
    rows = []
    for name, results in runs.items():
        cpu, wall, peak = (statistics.median(run[key] for run in results) for key in ("cpu_s", "wall_s", "peak_mb"))
        rows.append((name, f"{size_mb / cpu:.0f}", f"{base / cpu:.2f}", f"{size_mb / wall:.0f}", f"{peak:.0f}"))
    header = ("what", "MB/s of processor time", "times SeqIO", "MB/s of wall time", "peak memory, MB")
    note = f"\n\n{size_mb:.0f} MB of plain FASTA, one process each, medians of {repeats} runs in alternation."
    report("FASTA to shards", table(header, rows) + note, options.results)


if __name__ == "__main__":
    main()
