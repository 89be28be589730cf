"""From prompts to generated sequences in a file."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import ConfigError, OutputError
from protlat.files import atomic_path, format_bytes
from protlat.inference.account import model_name, require_given, require_inputs
from protlat.inference.generate import Generated, GenerationConfig, encode_prompt, generate_stream, require_causal
from protlat.inference.generate_files import OutputFormat, Writer, format_of, read_prompt_file
from protlat.models import CausalLM, read_model_config, resolve_model_folder
from protlat.reporting import format_seconds, peak_memory_bytes, progress

log = logging.getLogger(__name__)


class GenerateConfig(Config):
    """Everything that decides a run of `protlat generate`."""

    model: str = ""
    """Model folder, or run folder of a pretraining; the model must be causal."""
    prompts: tuple[str, ...] = ()
    """Beginnings to continue; none at all: sequences from nothing."""
    prompt_file: str | None = None
    """File of prompts: FASTA, or text; '-' is standard input."""
    document: Literal["line", "file"] = "line"
    """What one prompt is in a text file: each line, or the whole file."""
    output: str = "-"
    """File to write; '-' is standard output."""
    format: OutputFormat | None = None
    """fasta, text or jsonl; null: by the ending of the output, on standard output fasta for proteins and text for others."""
    generation: GenerationConfig = GenerationConfig()
    """How tokens are chosen, and when a sequence ends."""
    overwrite: bool = False
    """Replace the output."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working precision; auto: bfloat16 where the processor multiplies it natively, else float32."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; null: all."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.prompts and self.prompt_file is not None:
            raise ValueError("prompts: give them as words or as a file (--prompts), not both")
        if self.document == "file" and self.prompt_file is None:
            raise ValueError(
                "document: file says how a prompt file is read, but there is none; give one with --prompts"
            )
        return self


def run(config: GenerateConfig) -> dict[str, Any]:
    """Generate and write.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    ConfigError
        Settings that do not fit, or a model that is not causal.
    SequenceError
        A prompt file that cannot be read, or a prompt that the model cannot.
    OutputError
        The output exists.
    """
    require_given({"model (-m)": config.model})
    if config.prompt_file is not None:
        require_inputs([config.prompt_file])
    folder = resolve_model_folder(config.model)
    model_config, alphabet = read_model_config(folder)
    try:
        require_causal(model_config.causal)
    except ConfigError as error:
        raise ConfigError(f"{config.model}: {error}") from None
    out_format = format_of(config.output, config.format, alphabet)
    if config.output != "-" and Path(config.output).exists() and not config.overwrite:
        raise OutputError(f"{config.output} exists; replace it with --overwrite, or choose another output")
    set_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    if config.prompt_file is None:
        texts: list[str | bytes] = list(config.prompts) or [""]
        named = [(f"prompt{n}" if config.prompts else "generated", text) for n, text in enumerate(texts, start=1)]
    else:
        named = read_prompt_file(config.prompt_file, alphabet, config.document == "file")
    names = [name for name, _ in named]
    prompts = [encode_prompt(text, alphabet) for _, text in named]
    model = CausalLM.from_pretrained(folder, device, dtype)
    counts = _Counts()
    started_s = time.monotonic()
    total = len(prompts) * config.generation.num_samples
    with ExitStack() as stack:
        line = stack.enter_context(progress("generate", None, "tokens"))
        if config.output == "-":
            handle = sys.stdout
        else:
            path = stack.enter_context(atomic_path(config.output))
            handle = stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
        writer = Writer(handle, out_format, alphabet, names, config.generation.num_samples, total)
        for one in generate_stream(model, prompts, config.generation, line.advance):
            writer.write(one)
            counts.add(one)
        handle.flush()
    elapsed_s = max(time.monotonic() - started_s, 1e-9)
    return _account(config, counts, len(prompts), sum(map(len, prompts)), elapsed_s, model_name(folder))


@dataclass
class _Counts:
    """What is gathered while sequences pass by."""

    sequences: int = 0
    tokens: int = 0
    log_likelihood: float = 0.0
    stopped_by: Counter[str] = field(default_factory=Counter)

    def add(self, one: Generated) -> None:
        self.sequences += 1
        self.tokens += len(one.tokens)
        self.log_likelihood += one.log_likelihood
        self.stopped_by[one.stopped_by] += 1


def _account(
    config: GenerateConfig, counts: _Counts, n_prompts: int, n_prompt_tokens: int, elapsed_s: float, name: str
) -> dict[str, Any]:
    return {
        "model": name,
        "prompts": n_prompts,
        "tokens of prompts": n_prompt_tokens,
        "sequences written": counts.sequences,
        "tokens generated": counts.tokens,
        "ended by the model": counts.stopped_by["eos"],
        "ended by a stop text": counts.stopped_by["stop"],
        "ended by max_new_tokens": counts.stopped_by["length"],
        "mean loss of a token": f"{-counts.log_likelihood / max(counts.tokens, 1):.3f} nats",
        "tokens/s": round(counts.tokens / elapsed_s),
        "time computing": format_seconds(elapsed_s),
        "peak memory": format_bytes(peak_memory_bytes()),
        "written": "standard output" if config.output == "-" else config.output,
    }


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["generate", *sys.argv[1:]])
