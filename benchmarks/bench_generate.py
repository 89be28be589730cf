"""Tokens per second of generation behind prompts of growing length: protlat's recurrence against LAT's generation wrapper.

Both have width 320, 6 layers, 5 heads of 64 channels, 2 of them local with a window of 64; batch of one; sampling at
temperature 1 with the usual filter of each. LAT reads the whole text again for every token; with a blind spot of 1 it is
exact as protlat is, with 64 (its own advice for speed) its global heads do not see the last tokens. The time to read the
prompt is told apart; it is not part of the time of a token.

    python -m benchmarks.bench_generate [--short]
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.common import parser, prepare, report, table
from protlat.alphabet import PROTEIN
from protlat.inference.generate import GenerationConfig, generate_stream
from protlat.models import CausalLM, ModelConfig, load_preset

PROMPTS = (512, 2048, 8192)
N_TOKENS = 64
Run = Callable[[np.ndarray], list[float]]
"""A prompt's ids to the seconds of every token."""


def protlat(dtype: torch.dtype) -> tuple[Callable[[np.ndarray], tuple[float, list[float]]], int]:
    """Preset `small`, causal. Returns seconds until the first token, and of each further one."""
    model = CausalLM(ModelConfig.parse({**load_preset("small").to_plain(), "causal": True}), PROTEIN).to(dtype).eval()
    with torch.no_grad():
        # Random weights would end the sequence within some tokens.
        model.head.bias[PROTEIN.eos_id] = -1e4
    settings = GenerationConfig(max_new_tokens=N_TOKENS, top_p=0.95)

    def run(prompt: np.ndarray) -> tuple[float, list[float]]:
        times = [time.perf_counter()]
        list(generate_stream(model, [prompt], settings, lambda n: times.append(time.perf_counter())))
        return times[1] - times[0], np.diff(times[1:]).tolist()

    return run, sum(p.numel() for p in model.parameters())


def lat(dtype: torch.dtype, blindspot: int) -> tuple[Run, int]:
    """LAT and its generation wrapper."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from linear_attention_transformer import LinearAttentionTransformerLM
        from linear_attention_transformer.autoregressive_wrapper import AutoregressiveWrapper

    model = LinearAttentionTransformerLM(
        num_tokens=len(PROTEIN), dim=320, depth=6, heads=5, dim_head=64, max_seq_len=16_384, n_local_attn_heads=2,
        local_attn_window_size=64, causal=True, blindspot_size=blindspot,
    )  # fmt: skip
    wrapper = AutoregressiveWrapper(model.to(dtype).eval())

    def run(prompt: np.ndarray) -> list[float]:
        start_s = time.perf_counter()
        wrapper.generate(torch.from_numpy(prompt), 1)
        return [time.perf_counter() - start_s]

    return run, sum(p.numel() for p in model.parameters())


def main() -> None:
    options = parser(__doc__).parse_args()
    dtype = prepare(options)
    repeats = options.repeats or (1 if options.short else 3)
    ours, n_ours = protlat(dtype)
    peers = {f"LAT, blind spot {size}": lat(dtype, size) for size in (1, 64)}
    generator = np.random.default_rng(0)
    residues = np.array(PROTEIN.replacement_ids)
    prompts = {length: generator.choice(residues, size=length).astype(np.int64) for length in PROMPTS}
    read: dict[int, list[float]] = {length: [] for length in PROMPTS}
    times: dict[tuple[int, str], list[float]] = {(length, name): [] for length in PROMPTS for name in ("", *peers)}
    ours(prompts[PROMPTS[0]][:16])
    # Lengths and programs in turn, so that a slow moment of the machine hits all.
    for _ in range(repeats):
        for length, prompt in prompts.items():
            first_s, tokens_s = ours(prompt)
            read[length].append(first_s)
            times[length, ""] += tokens_s
            for name, (run, _) in peers.items():
                times[length, name] += run(prompt)
    rows = []
    for length in PROMPTS:
        median = statistics.median(times[length, ""])
        cells = [f"{length:,}", f"{1 / median:.0f} ({1e3 * median:.2f} ms)", f"{statistics.median(read[length]):.2f} s"]
        for name in peers:
            other = statistics.median(times[length, name])
            cells.append(f"{1 / other:.2f} ({other / median:.0f}x)")
        rows.append(cells)
    sizes = ", ".join(
        f"{name} {n / 1e6:.2f}M" for name, n in (("protlat", n_ours), ("LAT", peers["LAT, blind spot 1"][1]))
    )
    body = table(("prompt", "protlat, tokens/s", "reading the prompt", *(f"{name}, tokens/s" for name in peers)), rows)
    note = f"\n\n{str(dtype).removeprefix('torch.')}, batch of one, medians; in brackets protlat's time of a token, and how many times faster it is. Parameters: {sizes}."
    report("Generation: tokens per second behind a prompt", body + note, options.results)


if __name__ == "__main__":
    main()
