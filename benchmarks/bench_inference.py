"""How fast is a forward pass beside LAT and ESM-2 of the same size?

python -m benchmarks.bench_inference [--short]
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.common import alternate, parser, per_second, prepare, ratio, report, table
from benchmarks.peers import build, parameters

# (sequences, length, who takes part). ESM-2 needs minutes at 36,000 tokens: bench_length measures it apart.
CASES = [(16, 512, ("protlat", "lat", "esm2")), (1, 8192, ("protlat", "lat", "esm2")), (1, 35_991, ("protlat", "lat"))]


def main() -> None:
    options = parser(__doc__).parse_args()
    dtype = prepare(options)
    repeats = options.repeats or (7 if options.short else 15)
    rows = []
    for n_sequences, length, names in CASES:
        tokens = torch.randint(4, 24, (n_sequences, length))
        candidates, sizes = {}, []
        for name in names:
            model, forward = build(name, length)
            sizes.append(f"{parameters(model) / 1e6:.2f}M")
            candidates[name] = partial(forward(model.to(dtype).eval()), tokens)
        with torch.inference_mode():
            seconds = alternate(candidates, repeats, warmup=6)
        rates = [
            per_second(tokens.numel(), seconds[name]) if name in seconds else "-" for name in ("protlat", "lat", "esm2")
        ]
        ratios = [f"{ratio(seconds['protlat'], seconds[n]):.2f}" if n in seconds else "-" for n in ("lat", "esm2")]
        rows.append((f"{n_sequences} x {length:,}", *rates, *ratios))
    body = table(("sequences x length", "protlat, tokens/s", "LAT", "ESM-2", "times LAT", "times ESM-2"), rows)
    note = f"\n\n{str(dtype).removeprefix('torch.')}, no padding, medians of {repeats} alternating runs; parameters {', '.join(sizes)}."
    report("Inference", body + note, options.results)


if __name__ == "__main__":
    main()
