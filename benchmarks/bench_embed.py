"""How much of the bare forward rate does `protlat embed` keep, end to end?

Runs, in alternation and on the same sequences: the encoder alone over ready-made batches, and the whole pipeline (read, check,
batch, compute, write parts, assemble) for means and for means with per-residue vectors. Prints medians and ratios.

    python -m benchmarks.bench_embed [--short] [--preset tiny] [--sequences 400]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import parser, prepare, report, table
from protlat.alphabet import PROTEIN
from protlat.data.packing import batches_by_tokens, pack_ids, with_specials
from protlat.models import Encoder, MaskedLM, load_preset
from protlat.pipelines.embed import EmbedConfig, run

TOKS_PER_BATCH = 8192


def random_proteins(n: int, seed: int) -> list[str]:
    """Lengths spread as in a proteome (log-normal, median 300), composition uniform."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(300), 0.6, n), 30, 5000).astype(int)
    residues = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    return ["".join(rng.choice(residues, length)) for length in lengths]


def timed(function: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    function()
    return time.perf_counter() - start_s


def measure(preset: str, n_sequences: int, repeats: int, dtype: torch.dtype) -> tuple[dict[str, float], int]:
    """Residues per second of each kind of work, the forward pass alone first, and the number of residues."""
    device = torch.device("cpu")
    proteins = random_proteins(n_sequences, seed=0)
    n_residues = sum(map(len, proteins))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        torch.manual_seed(0)
        MaskedLM(load_preset(preset), PROTEIN).save_pretrained(place / "model")
        fasta = place / "in.fasta"
        fasta.write_text("".join(f">p{i}\n{protein}\n" for i, protein in enumerate(proteins)))

        encoder = Encoder.from_pretrained(place / "model", device, dtype)
        pieces = [with_specials(PROTEIN.encode(protein), PROTEIN) for protein in proteins]
        groups = batches_by_tokens([len(piece) for piece in pieces], TOKS_PER_BATCH)
        batches = [pack_ids([pieces[i] for i in group]).to(device) for group in groups]

        def bare() -> None:
            with torch.inference_mode():
                for batch in batches:
                    encoder(batch.tokens, batch.segments)

        def pipeline(*include: str) -> None:
            values = {"inputs": [str(fasta)], "model": str(place / "model"), "outputs": [str(place / "out.h5")]}
            run(
                EmbedConfig.parse(
                    {
                        **values,
                        "vectors": {"include": include},
                        "toks_per_batch": TOKS_PER_BATCH,
                        "device": str(device),
                        "dtype": str(dtype).removeprefix("torch."),
                        "overwrite": True,
                    }
                )
            )

        work: dict[str, Callable[[], None]] = {
            "forward alone": bare,
            "embed, mean": lambda: pipeline("mean"),
            "embed, mean + per_tok": lambda: pipeline("mean", "per_tok"),
        }
        for function in work.values():
            function()
        seconds: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(repeats):
            for name, function in work.items():
                seconds[name].append(timed(function))
    return {name: n_residues / statistics.median(values) for name, values in seconds.items()}, n_residues


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--preset", default="small")
    options_parser.add_argument("--sequences", type=int)
    options = options_parser.parse_args()
    n_sequences = options.sequences or (200 if options.short else 1000)
    repeats = options.repeats or 3
    dtype = prepare(options)
    rates, n_residues = measure(options.preset, n_sequences, repeats, dtype)
    rows = [(name, f"{rate:,.0f}", f"{rate / rates['forward alone']:.2f}") for name, rate in rates.items()]
    note = (
        f"\n\nPreset {options.preset}, {str(dtype).removeprefix('torch.')}, {n_sequences} sequences, {n_residues:,} residues, batches of "
        f"{TOKS_PER_BATCH:,} tokens, medians of {repeats} alternating runs."
    )
    report("Embed, end to end", table(("work", "residues/s", "of forward alone"), rows) + note, options.results)


if __name__ == "__main__":
    main()
