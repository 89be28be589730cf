"""Sequences from a causal model: the prompt is read once, then every step reads one token and the state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.alphabet import Alphabet
from protlat.errors import ConfigError, SequenceError
from protlat.inference.generate_sampling import RandomNumbers, Sampler, SamplingConfig
from protlat.models.language_model import LanguageModel
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments

Prompt = str | bytes | np.ndarray


class GenerationConfig(SamplingConfig):
    """What is generated, and how."""

    max_new_tokens: int = Field(256, ge=1)
    """Most tokens added to a prompt; a sequence also ends where the model says so (<eos>)."""
    num_samples: int = Field(1, ge=1)
    """Sequences for every prompt."""
    stop: tuple[str, ...] = ()
    """Texts at which a sequence ends too; they are left off its end."""
    seed: int = Field(0, ge=0)
    """A sequence follows from the seed, its prompt and its sample number, whatever is generated beside it."""
    batch_size: int = Field(64, ge=1)
    """Sequences generated side by side."""
    toks_per_batch: int = Field(8192, ge=1)
    """Most tokens of a pass while prompts are read; longer ones are read in pieces."""

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                "temperature 0 gives the same sequence every time; use num_samples 1, or a temperature above 0"
            )
        return self


@dataclass
class Generated:
    """One generated sequence.

    Attributes
    ----------
    prompt : numpy.ndarray, shape (P,), int64
        Ids of the prompt, without ``<cls>``.
    prompt_index, sample : int
        Which prompt it belongs to, and which of its samples it is, from 0.
    tokens : list of int
        Ids that were chosen, in order, ``<eos>`` and a stop text included.
    log_probs : list of float
        Natural logarithm of the model's probability of each of them: at temperature 1, over all tokens, before any
        filter.
    stopped_by : str
        "eos", "stop" or "length"; "" while it grows.
    n_kept : int
        How many of `tokens` belong to the sequence: those before ``<eos>`` or the stop text.
    """

    prompt: np.ndarray
    prompt_index: int
    sample: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stopped_by: str = ""
    n_kept: int = 0

    @property
    def log_likelihood(self) -> float:
        """Sum of `log_probs`, in nats."""
        return math.fsum(self.log_probs)

    @property
    def new_ids(self) -> np.ndarray:
        """What was added to the prompt, shape (n_kept,), int64."""
        return np.array(self.tokens[: self.n_kept], dtype=np.int64)

    def text(self, alphabet: Alphabet, with_prompt: bool = True) -> str:
        """The sequence as text."""
        ids = np.concatenate([self.prompt, self.new_ids]) if with_prompt else self.new_ids
        return alphabet.decode(ids)


def generate(
    model: LanguageModel, prompts: Sequence[Prompt], settings: GenerationConfig | None = None
) -> list[Generated]:
    """Continue prompts with a causal model.

    Parameters
    ----------
    model : LanguageModel
        A `CausalLM` in evaluation mode.
    prompts : sequence of str, bytes or numpy.ndarray
        Texts, or ids without specials; an empty one starts from ``<cls>`` alone.
    settings : GenerationConfig, optional

    Returns
    -------
    list of Generated
        `num_samples` for every prompt, in order.

    Raises
    ------
    ConfigError
        The model is not causal.
    SequenceError
        A prompt that the alphabet cannot write, or one that grows longer than learned positions reach.

    Notes
    -----
    Time and memory of a step do not depend on how many tokens were read before. A sequence does not depend on its
    batch-mates or their order, to rounding of the working precision.
    """
    found = sorted(generate_stream(model, prompts, settings), key=lambda one: (one.prompt_index, one.sample))
    return list(found)


def generate_stream(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    settings: GenerationConfig | None = None,
    on_tokens: Callable[[int], None] = lambda n: None,
) -> Iterator[Generated]:
    """The same, batch after batch, each as soon as it is done; `on_tokens` is told how many tokens each step has added."""
    settings = settings or GenerationConfig()
    require_causal(model.config.causal)
    ids = [encode_prompt(prompt, model.alphabet) for prompt in prompts]
    check_positions(max(map(len, ids), default=0), settings.max_new_tokens, model.config.max_length)
    stops = [model.alphabet.encode(text).astype(np.int64).tolist() for text in settings.stop]
    if any(not stop for stop in stops):
        raise ConfigError("stop: an empty text would stop everything at once")
    copies: Counter[bytes] = Counter()
    jobs: list[tuple[Generated, RandomNumbers]] = []
    for index, prompt in enumerate(ids):
        for sample in range(settings.num_samples):
            copy = copies[prompt.tobytes()]
            copies[prompt.tobytes()] += 1
            jobs.append((Generated(prompt, index, sample), RandomNumbers(settings.seed, prompt, copy)))
    for begin in range(0, len(jobs), settings.batch_size):
        batch = jobs[begin : begin + settings.batch_size]
        with torch.inference_mode():
            _Batch(model, settings, stops, batch).run(on_tokens)
        yield from (one for one, _ in batch)


def require_causal(causal: bool) -> None:
    """Check that a model can generate.

    Raises
    ------
    ConfigError
        It sees both sides.
    """
    if not causal:
        raise ConfigError(
            "this model is not causal: it fills in <mask> (protlat predict masked) but cannot generate; pretrain one with "
            "model.causal=true"
        )


def check_positions(n_prompt: int, max_new_tokens: int, max_length: int | None) -> None:
    """Check that a model has positions for all that it is asked to read, before anything is generated.

    Raises
    ------
    SequenceError
        It has not.
    """
    # <cls> stands before the prompt, and the last token is chosen but not read.
    n_read = n_prompt + max_new_tokens
    if max_length is not None and n_read > max_length:
        raise SequenceError(
            f"a prompt of {n_prompt} tokens and max_new_tokens {max_new_tokens} make {n_read} positions, but this model has "
            f"{max_length}; use at most {max(max_length - n_prompt, 0)} new tokens, or a model with positions none or "
            f"sinusoidal"
        )


def encode_prompt(prompt: Prompt, alphabet: Alphabet) -> np.ndarray:
    """Ids of a prompt, int64.

    Raises
    ------
    SequenceError
        A symbol that is not in the alphabet, or a special token.
    """
    ids = (prompt if isinstance(prompt, np.ndarray) else alphabet.encode(prompt)).astype(np.int64)
    odd = np.flatnonzero(np.isin(ids, alphabet.special_ids))
    if len(odd):
        shown = f"prompt {prompt[:40]!r}" if not isinstance(prompt, np.ndarray) else "prompt"
        raise SequenceError(
            f"{shown}: position {odd[0] + 1} is {alphabet.tokens[ids[odd[0]]]}, not a symbol of the {alphabet.name} alphabet"
        )
    return ids


class _Batch:
    """Some sequences that grow side by side; those that are done leave."""

    def __init__(
        self,
        model: LanguageModel,
        settings: GenerationConfig,
        stops: list[list[int]],
        jobs: list[tuple[Generated, RandomNumbers]],
    ) -> None:
        self.model, self.settings, self.stops = model, settings, stops
        self.live = list(jobs)
        self.device = next(model.parameters()).device
        self.sampler = Sampler(settings, model.alphabet, self.device)
        self.eos_id = model.alphabet.eos_id
        self.state, self.logits, self.lengths = self._read_prompts()
        self.seen = self._seen() if settings.repetition_penalty != 1 else None

    def _read_prompts(self) -> tuple[RecurrentState, torch.Tensor, list[int]]:
        """State, logits and tokens read of every sequence, behind its prompt; equal prompts are read once."""
        prompts: dict[bytes, int] = {}
        rows = [prompts.setdefault(one.prompt.tobytes(), len(prompts)) for one, _ in self.live]
        texts = [np.concatenate([[self.model.alphabet.cls_id], np.frombuffer(key, dtype=np.int64)]) for key in prompts]
        state, logits = read_prompts(self.model, texts, self.settings.toks_per_batch, self.device)
        if len(rows) == len(texts):
            return state, logits, [len(text) for text in texts]
        where = torch.tensor(rows, device=self.device)
        return state.select(where), logits.index_select(0, where), [len(texts[row]) for row in rows]

    def _seen(self) -> torch.Tensor:
        seen = torch.zeros(len(self.live), len(self.model.alphabet), dtype=torch.bool)
        for row, (one, _) in zip(seen, self.live, strict=True):
            row[torch.from_numpy(one.prompt)] = True
        return seen.to(self.device)

    def run(self, on_tokens: Callable[[int], None]) -> None:
        """Step until all are done."""
        while True:
            chosen = self._choose()
            on_tokens(len(self.live))
            going = [row for row, (one, _) in enumerate(self.live) if not one.stopped_by]
            if not going:
                return
            if len(going) < len(self.live):
                rows = torch.tensor(going, device=self.device)
                chosen, self.state = chosen.index_select(0, rows), self.state.select(rows)
                self.seen = None if self.seen is None else self.seen.index_select(0, rows)
                self.live = [self.live[row] for row in going]
                self.lengths = [self.lengths[row] for row in going]
            segments = Segments([1] * len(going), self.device, self.lengths)
            self.logits = self.model(chosen, segments, None, self.state)
            self.state = self.state.next()
            self.lengths = [n + 1 for n in self.lengths]

    def _choose(self) -> torch.Tensor:
        numbers = [random.next() for _, random in self.live] if self.settings.temperature else []
        chosen = self.sampler.choose(self.logits, self.seen, numbers)
        if self.seen is not None:
            self.seen.scatter_(1, chosen[:, None], True)
        log_probs = torch.log_softmax(self.logits, 1).gather(1, chosen[:, None]).squeeze(1)
        for (one, _), token, log_prob in zip(self.live, chosen.tolist(), log_probs.tolist(), strict=True):
            one.tokens.append(token)
            one.log_probs.append(log_prob)
            self._check_end(one)
        return chosen

    def _check_end(self, one: Generated) -> None:
        tokens = one.tokens
        one.n_kept = len(tokens)
        if tokens[-1] == self.eos_id:
            one.stopped_by, one.n_kept = "eos", len(tokens) - 1
            return
        for stop in self.stops:
            if tokens[-len(stop) :] == stop:
                one.stopped_by, one.n_kept = "stop", len(tokens) - len(stop)
                return
        if len(tokens) == self.settings.max_new_tokens:
            one.stopped_by = "length"


def read_prompts(
    model: LanguageModel, texts: Sequence[np.ndarray], toks_per_batch: int, device: torch.device
) -> tuple[RecurrentState, torch.Tensor]:
    """Read texts of any lengths in passes of about `toks_per_batch` tokens.

    Every pass reads up to m tokens of each text. Shorter texts join in late, so that all end with the last pass: the
    state of a text that has not begun is a row of zeros.

    Parameters
    ----------
    texts : sequence of numpy.ndarray, shape (L,), int64
        With ``<cls>``.

    Returns
    -------
    state : RecurrentState
        Behind the last token of each, for the next call.
    logits : torch.Tensor, shape (S, V), float32
        Of the token after each.
    """
    share = max(1, toks_per_batch // len(texts))
    n_passes = max(-(-len(text) // share) for text in texts)
    state = RecurrentState()
    before: list[int] = []
    for number in range(n_passes):
        left = (n_passes - number) * share
        spans = [(row, max(len(text) - left, 0), len(text) - left + share) for row, text in enumerate(texts)]
        spans = [(row, start, stop) for row, start, stop in spans if stop > 0]
        if before and [row for row, _, _ in spans] != before:
            place = {row: k for k, row in enumerate(before)}
            state = state.select(torch.tensor([place.get(row, -1) for row, _, _ in spans], device=device))
        before = [row for row, _, _ in spans]
        tokens = np.concatenate([texts[row][start:stop] for row, start, stop in spans])
        segments = Segments([stop - start for _, start, stop in spans], device, [start for _, start, _ in spans])
        at = segments.cu_seqlens[1:] - 1
        logits = model(torch.from_numpy(tokens).to(device), segments, at, state)
        state = state.next()
    return state, logits
