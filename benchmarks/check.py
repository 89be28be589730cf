"""Has protlat become slower? Short runs beside the peers, compared with the ratios of `ratios.json`.

A ratio that fell by more than 20 % fails. Ratios of one machine say little about another: store those of yours first.

    python -m benchmarks.check            compare
    python -m benchmarks.check --store    measure and keep
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks import bench_causal, bench_embed, bench_prep
from benchmarks.bench_training import step_of
from benchmarks.common import alternate, machine, parser, prepare, ratio, table
from benchmarks.peers import build

STORED = Path(__file__).parent / "ratios.json"
LEAST = 0.8
"""Share of a stored ratio that must be left."""
Measure = Callable[[torch.dtype, int], float]


def inference(peer: str, n_sequences: int, length: int, dtype: torch.dtype, repeats: int) -> float:
    """Speed of a forward pass by that of a peer."""
    tokens = torch.randint(4, 24, (n_sequences, length))
    candidates = {}
    for name in ("protlat", peer):
        model, forward = build(name, length)
        candidates[name] = partial(forward(model.to(dtype).eval()), tokens)
    with torch.inference_mode():
        seconds = alternate(candidates, repeats)
    return ratio(seconds["protlat"], seconds[peer])


def training(peer: str, n_sequences: int, length: int, dtype: torch.dtype, repeats: int) -> float:
    """Speed of a training step by that of a peer."""
    tokens = torch.randint(4, 24, (n_sequences, length))
    candidates = {}
    for name in ("protlat", peer):
        model, forward = build(name, length)
        candidates[name] = step_of(model, forward(model), tokens, dtype)
    seconds = alternate(candidates, repeats, warmup=2)
    return ratio(seconds["protlat"], seconds[peer])


def causal(n_sequences: int, length: int, dtype: torch.dtype, repeats: int) -> float:
    """Speed of exact causal training by that of LAT with a blind spot of one token."""
    names = ("protlat", "LAT 1")
    candidates = {name: bench_causal.task_of(name, "training", n_sequences, length, dtype) for name in names}
    seconds = alternate(candidates, repeats, warmup=1)
    return ratio(seconds["protlat"], seconds["LAT 1"])


def prep(size_bytes: int, dtype: torch.dtype, repeats: int) -> float:
    """Speed of FASTA to shards by that of SeqIO's parser alone, both in processor time."""
    names = ("protlat prep, end to end", "Biopython SeqIO.parse alone")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made_up.fasta"
        bench_prep.make_fasta(path, size_bytes)
        ratios = []
        for _ in range(repeats):
            ours, theirs = (bench_prep.measure(name, path)["cpu_s"] for name in names)
            ratios.append(theirs / ours)
    return statistics.median(ratios)


def embed(n_sequences: int, dtype: torch.dtype, repeats: int) -> float:
    """Speed of `protlat embed --include mean`, end to end, by that of the forward pass alone."""
    rates, _ = bench_embed.measure("tiny", n_sequences, repeats, dtype)
    return rates["embed, mean"] / rates["forward alone"]


GUARDS: dict[str, Measure] = {
    "inference 8 x 512, times LAT": partial(inference, "lat", 8, 512),
    "inference 1 x 8,192, times LAT": partial(inference, "lat", 1, 8192),
    "inference 8 x 512, times ESM-2": partial(inference, "esm2", 8, 512),
    "training 4 x 512, times LAT": partial(training, "lat", 4, 512),
    "training 4 x 512, times ESM-2": partial(training, "esm2", 4, 512),
    "exact causal training 2 x 512, times LAT": partial(causal, 2, 512),
    "FASTA to shards, times SeqIO": partial(prep, 20_000_000),
    "embed, share of the forward rate": partial(embed, 100),
}


def compare(measured: Mapping[str, float], stored: Mapping[str, float]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rows of a table, and the names of ratios that fell too far.

    Parameters
    ----------
    measured, stored : mapping of str to float
        A name that is not stored is shown and cannot fail.
    """
    rows, fallen = [], []
    for name, value in measured.items():
        before = stored.get(name)
        if before is None:
            rows.append((name, f"{value:.2f}", "-", "new"))
            continue
        if value < LEAST * before:
            fallen.append(name)
        rows.append((name, f"{value:.2f}", f"{before:.2f}", "FELL" if name in fallen else "ok"))
    return rows, fallen


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--store", action="store_true", help="Keep what is measured as the new mark.")
    options = options_parser.parse_args()
    dtype = prepare(options)
    repeats = options.repeats or 5
    measured = {name: measure(dtype, repeats) for name, measure in GUARDS.items()}
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"machine": "", "ratios": {}}
    rows, fallen = compare(measured, stored["ratios"])
    print(machine())
    if stored["machine"] not in ("", machine()):
        print(f"stored on another machine or with other versions: {stored['machine']}")
    print(table(("what", "now", "stored", ""), rows))
    if options.store:
        ratios = {name: round(value, 3) for name, value in measured.items()}
        STORED.write_text(json.dumps({"machine": machine(), "ratios": ratios}, indent=1) + "\n", encoding="utf-8")
        return 0
    for name in fallen:
        print(f"{name}: fell by more than {1 - LEAST:.0%}", file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
