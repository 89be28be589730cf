"""How fast and how lean is causal attention beside LAT's, exact and with LAT's blind spot of 64 tokens?

Everybody has the same width, depth, heads (2 in a causal window of 64, 3 global), no convolution, no gates and no
rotary angles; protlat's feed-forward has no biases, as in its presets. protlat is exact. LAT's blind spot of 1 is exact too; one of 64 hides from a token up to 64 tokens before
it, itself included.

    python -m benchmarks.bench_causal [--short]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.common import alternate, parser, per_second, prepare, ratio, report, table
from protlat.alphabet import PROTEIN
from protlat.models import Encoder, ModelConfig
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments
from protlat.reporting import peak_memory_bytes

NAMES = ("protlat", "LAT 1", "LAT 64")
CASES = [(4, 512), (1, 4096)]
CONFIG = {
    "d_model": 320, "n_layers": 6, "head_dim": 64, "causal": True, "local_conv": None,
    "attention": [{"kind": "window", "n_heads": 2, "radius": 64, "rotary": False}, {"kind": "efficient", "n_heads": 3}],
    "feed_forward": {"kind": "gelu", "bias": False},
}  # fmt: skip


def build(name: str, length: int) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """A causal model, and its forward pass from (B, L) ids to vectors."""
    torch.manual_seed(0)
    if name == "protlat":
        encoder = Encoder(ModelConfig.parse(CONFIG), PROTEIN)
        return encoder, lambda ids: encoder(ids.flatten(), Segments([ids.shape[1]] * len(ids)))[6]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(
        num_tokens=len(PROTEIN), dim=320, depth=6, heads=5, dim_head=64, max_seq_len=length, n_local_attn_heads=2,
        local_attn_window_size=64, causal=True, blindspot_size=int(name.split()[1]), return_embeddings=True,
    )  # fmt: skip
    return model, model


def task_of(name: str, task: str, n_sequences: int, length: int, dtype: torch.dtype) -> Callable[[], None]:
    """One inference pass in `dtype`, or forward and backward under autocast."""
    model, forward = build(name, length)
    ids = torch.randint(4, 24, (n_sequences, length), generator=torch.Generator().manual_seed(0))
    if task == "inference":
        model.to(dtype).eval()

        def infer() -> None:
            with torch.inference_mode():
                forward(ids)

        return infer

    def train() -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            out = forward(ids)
        out.float().square().mean().backward()
        model.zero_grad()

    return train


def peak_gb(name: str, length: int, n_sequences: int, threads: int) -> float:
    """Peak memory of two training steps in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.bench_causal", "--threads", str(threads), "--one", name]
    done = subprocess.run([*command, str(n_sequences), str(length)], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def step_ms(n_before: int, dtype: torch.dtype) -> float:
    """Median milliseconds of one token through the encoder with a state, behind `n_before` tokens."""
    model = Encoder(ModelConfig.parse(CONFIG), PROTEIN).to(dtype).eval()
    state = RecurrentState()
    seconds = []
    with torch.inference_mode():
        model(torch.full((n_before,), 5), Segments([n_before]), state=state)
        for n in range(60):
            state = state.next()
            start_s = time.perf_counter()
            model(torch.tensor([5]), Segments([1], offsets=[n_before + n]), state=state)
            seconds.append(time.perf_counter() - start_s)
    return 1e3 * statistics.median(seconds[10:])


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--one", nargs=3, metavar=("NAME", "SEQUENCES", "LENGTH"), help="Peak memory of one.")
    options = options_parser.parse_args()
    dtype = prepare(options)
    if options.one:
        name, n_sequences, length = options.one[0], int(options.one[1]), int(options.one[2])
        step = task_of(name, "training", n_sequences, length, dtype)
        for _ in range(2):
            step()
        print(json.dumps(peak_memory_bytes() / 1e9))
        return
    repeats = options.repeats or (3 if options.short else 7)
    rows: list[tuple[Any, ...]] = []
    for task in ("training", "inference"):
        for n_sequences, length in CASES[:1] if options.short else CASES:
            candidates = {name: task_of(name, task, n_sequences, length, dtype) for name in NAMES}
            seconds = alternate(candidates, repeats, warmup=1)
            rates = [per_second(n_sequences * length, seconds[name]) for name in NAMES]
            ratios = [f"{ratio(seconds['protlat'], seconds[name]):.2f}" for name in NAMES[1:]]
            memory = ["", "", ""]
            if task == "training":
                memory = [f"{peak_gb(name, length, n_sequences, options.threads):.2f}" for name in NAMES]
            rows.append((f"{task}, {n_sequences} x {length:,}", *rates, *ratios, " / ".join(memory).strip(" /")))
    header = ("work", *(f"{name}, tokens/s" for name in NAMES), "times LAT 1", "times LAT 64", "peak GB of the three")
    steps = ", ".join(f"{step_ms(n, dtype):.1f} ms after {n:,} tokens" for n in (500, 8000))
    body = (
        f"{table(header, rows)}\n\n{str(dtype).removeprefix('torch.')}, medians of {repeats} alternating runs; LAT 1 and "
        f"LAT 64: its blind spot. One token with a state, six layers: {steps}."
    )
    report("Causal attention", body, options.results)


if __name__ == "__main__":
    main()
