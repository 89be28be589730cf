"""Generation: the recurrence against the parallel form, samples that are each one's own, and what sampling means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError, SequenceError
from protlat.inference.generate import Generated, GenerationConfig, encode_prompt, generate, read_prompts
from protlat.inference.generate_sampling import RandomNumbers, Sampler, SamplingConfig
from protlat.models import CausalLM, MaskedLM, ModelConfig
from protlat.ops.segments import Segments

KINDS = {
    "window and linear": {
        "attention": [{"kind": "window", "n_heads": 1, "radius": 4}, {"kind": "linear", "n_heads": 1}],
        "local_conv": {"size": 3, "target": "qkv"}, "token_shift": True,
    },
    "efficient, rotary softmax": {
        "attention": [{"kind": "efficient", "n_heads": 1}, {"kind": "softmax", "n_heads": 1}], "local_conv": None,
        "positions": {"kind": "sinusoidal"},
    },
}  # fmt: skip
PROMPTS = ["", "MKV", "ACDEFGHIKLMNPQRSTVWY" * 3, "W", "MKVLAT"]


def make(kind: str = "window and linear", alphabet: Any = PROTEIN, dtype: torch.dtype = torch.float64) -> CausalLM:
    config = ModelConfig.parse({"d_model": 16, "n_layers": 2, "head_dim": 8, "causal": True, **KINDS[kind]})
    torch.manual_seed(1)
    model = CausalLM(config, alphabet).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.4)
    return model


def settings(**values: Any) -> GenerationConfig:
    return GenerationConfig.parse({"max_new_tokens": 25, **values})


def plain(found: list[Generated]) -> list[tuple[int, int, list[int], str]]:
    return [(one.prompt_index, one.sample, one.tokens, one.stopped_by) for one in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("toks_per_batch", [10_000, 12])
def test_log_probabilities_are_those_of_the_parallel_form(kind: str, toks_per_batch: int) -> None:
    model = make(kind)
    found = generate(model, PROMPTS, settings(num_samples=2, toks_per_batch=toks_per_batch))
    assert [(one.prompt_index, one.sample) for one in found] == [(p, s) for p in range(5) for s in range(2)]
    for one in found:
        ids = torch.tensor([PROTEIN.cls_id, *one.prompt, *one.tokens])
        with torch.no_grad():
            log_probs = torch.log_softmax(model(ids, Segments([len(ids)])), 1)
        behind = log_probs[len(one.prompt) : -1].gather(1, ids[len(one.prompt) + 1 :, None]).squeeze(1)
        assert one.log_probs == pytest.approx(behind.tolist(), abs=1e-9)
        assert one.log_likelihood == pytest.approx(float(behind.sum()), abs=1e-8)


@pytest.mark.parametrize("greedy", [False, True])
def test_a_sequence_depends_on_its_own_prompt_alone(greedy: bool) -> None:
    model = make()
    options = {"temperature": 0} if greedy else {"num_samples": 3, "seed": 7}
    together = generate(model, PROMPTS, settings(**options))
    backwards = generate(model, PROMPTS[::-1], settings(**options, batch_size=4, toks_per_batch=16))
    mirrored = [(4 - p, s, tokens, by) for p, s, tokens, by in plain(backwards)]
    assert sorted(mirrored) == plain(together)
    for index, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], settings(**options))
        assert [one.tokens for one in alone] == [one.tokens for one in together if one.prompt_index == index]
    if not greedy:
        assert plain(generate(model, PROMPTS, settings(num_samples=3, seed=8))) != plain(together)
        texts = {tuple(one.tokens) for one in together if one.prompt_index == 1}
        assert len(texts) == 3


def test_equal_prompts_are_read_once_and_sampled_apart() -> None:
    model = make()
    found = generate(model, ["MKV", "MKV"], settings(num_samples=2))
    assert len({tuple(one.tokens) for one in found}) == 4
    assert [one.tokens for one in found] == [one.tokens for one in generate(model, ["MKV"], settings(num_samples=4))]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_any_length_are_read_in_passes(kind: str) -> None:
    model = make(kind)
    texts = [np.array([PROTEIN.cls_id, *PROTEIN.encode(prompt)], dtype=np.int64) for prompt in PROMPTS]
    with torch.no_grad():
        _, whole = read_prompts(model, texts, 10_000, torch.device("cpu"))
        for budget in (5, 37):
            _, pieces = read_prompts(model, texts, budget, torch.device("cpu"))
            torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-9)
        for row, text in zip(whole, texts, strict=True):
            alone = model(torch.from_numpy(text), Segments([len(text)]))[-1]
            torch.testing.assert_close(row, alone, rtol=1e-9, atol=1e-9)


def test_only_residues_and_the_end_are_chosen() -> None:
    model = make()
    allowed = {*PROTEIN.replacement_ids, PROTEIN.eos_id}
    found = generate(model, [""], settings(num_samples=30, temperature=50.0, max_new_tokens=40))
    chosen = {token for one in found for token in one.tokens}
    # At this temperature every one of the 21 has its turn.
    assert chosen == allowed
    for one in found:
        assert (one.stopped_by == "eos") == (one.tokens[-1] == PROTEIN.eos_id)
        assert PROTEIN.eos_id not in one.tokens[:-1]
        assert one.n_kept == len(one.tokens) - (one.stopped_by == "eos")
        assert one.stopped_by == "eos" or len(one.tokens) == 40
    assert {one.stopped_by for one in found} == {"eos", "length"}


def test_a_stop_text_ends_its_own_sequence_only() -> None:
    model = make()
    free = generate(model, ["MKV", "W"], settings(num_samples=3, max_new_tokens=30))
    text = PROTEIN.decode(free[0].tokens[4:6])
    stopped = generate(model, ["MKV", "W"], settings(num_samples=3, max_new_tokens=30, stop=[text, "ZZZ"]))
    for one, other in zip(stopped, free, strict=True):
        written = PROTEIN.decode(other.tokens)
        if text in written:
            end = written.index(text)
            assert (one.stopped_by, one.n_kept) == ("stop", end)
            assert one.tokens == other.tokens[: end + 2]
            assert one.text(PROTEIN, with_prompt=False) == written[:end]
        else:
            assert one.tokens == other.tokens
            assert one.stopped_by == other.stopped_by
    assert stopped[0].stopped_by == "stop"
    assert {one.stopped_by for one in stopped} != {"stop"}
    with pytest.raises(ConfigError, match="an empty text would stop everything"):
        generate(model, ["MKV"], settings(stop=[""]))


def test_greedy_takes_the_likeliest_residue() -> None:
    model = make()
    [one] = generate(model, ["MKV"], settings(temperature=0, max_new_tokens=8))
    ids = [PROTEIN.cls_id, *PROTEIN.encode("MKV").tolist()]
    allowed = torch.tensor(sorted((*PROTEIN.replacement_ids, PROTEIN.eos_id)))
    for token in one.tokens:
        with torch.no_grad():
            logits = model(torch.tensor(ids), Segments([len(ids)]))[-1]
        assert token == int(allowed[logits[allowed].argmax()])
        ids.append(token)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not causal: it fills in <mask>.*model\.causal=true"):
        generate(MaskedLM(ModelConfig(), PROTEIN), ["MKV"])  # type: ignore[arg-type]
    with pytest.raises(SequenceError, match=r"prompt 'MK1': position 3 is <unk>, not a symbol of the protein alphabet"):
        encode_prompt("MK1", PROTEIN)
    with pytest.raises(SequenceError, match="position 2 is <mask>"):
        encode_prompt("M<mask>K", PROTEIN)
    with pytest.raises(ConfigError, match="top_k and top_p cannot act"):
        settings(temperature=0, top_k=3)
    with pytest.raises(ConfigError, match="same sequence every time"):
        settings(temperature=0, num_samples=2)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -3.0]])


class Letters:
    """An alphabet of five letters and an end that is never likely."""

    replacement_ids = (0, 1, 2, 3, 4)
    eos_id = 5


def chances(logits: torch.Tensor, seen: torch.Tensor | None = None, **values: Any) -> list[float]:
    """Shares in which a sampler chooses each of the five, read off a fine grid of numbers."""
    sampler = Sampler(SamplingConfig.parse(values), Letters())  # type: ignore[arg-type]
    rows = torch.cat([logits, torch.full((1, 1), -50.0)], 1)
    n = 20_000
    seen = None if seen is None else torch.cat([seen, torch.zeros(1, 1, dtype=torch.bool)], 1).expand(n, -1)
    grid = [(i + 0.5) / n for i in range(n)]
    chosen = sampler.choose(rows.expand(n, -1), seen, grid)
    return (torch.bincount(chosen, minlength=6)[:5] / n).tolist()


def test_the_filters_have_their_standard_meaning() -> None:
    p = torch.softmax(LOGITS[0], 0)
    assert chances(LOGITS) == pytest.approx(p.tolist(), abs=2e-4)
    assert chances(LOGITS, temperature=0.5) == pytest.approx(torch.softmax(2 * LOGITS[0], 0).tolist(), abs=2e-4)
    kept = [*(p[:2] / p[:2].sum()).tolist(), 0, 0, 0]
    assert chances(LOGITS, top_k=2) == pytest.approx(kept, abs=2e-4)
    assert chances(LOGITS, top_k=99) == pytest.approx(p.tolist(), abs=2e-4)
    # The first two hold 0.64 + 0.24 = 0.88: the fewest that reach 0.8 are two, and 0.9 needs the third.
    assert chances(LOGITS, top_p=0.8) == pytest.approx(kept, abs=2e-4)
    assert chances(LOGITS, top_p=0.9) == pytest.approx([*(p[:3] / p[:3].sum()).tolist(), 0, 0], abs=2e-4)
    assert chances(LOGITS, top_p=1e-9) == [1, 0, 0, 0, 0]
    # Of the two that top-k leaves, the first alone holds 0.73.
    assert chances(LOGITS, top_k=2, top_p=0.7) == [1, 0, 0, 0, 0]


def test_the_repetition_penalty_pushes_down_what_was_seen() -> None:
    seen = torch.tensor([[True, False, False, True, False]])
    expected = torch.softmax(torch.tensor([1.0, 1.0, 0.0, -2.0, -3.0]), 0)
    assert chances(LOGITS, seen, repetition_penalty=2.0) == pytest.approx(expected.tolist(), abs=2e-4)
    # In a run: the greedy choice under logits that are penalised by hand.
    model = make()
    [one] = generate(model, ["MKV"], settings(temperature=0, repetition_penalty=3.0, max_new_tokens=12))
    [free] = generate(model, ["MKV"], settings(temperature=0, max_new_tokens=12))
    assert one.tokens != free.tokens
    ids = [PROTEIN.cls_id, *PROTEIN.encode("MKV").tolist()]
    allowed = torch.tensor(sorted((*PROTEIN.replacement_ids, PROTEIN.eos_id)))
    for token in one.tokens:
        with torch.no_grad():
            logits = model(torch.tensor(ids), Segments([len(ids)]))[-1]
        repeated = torch.tensor(sorted(set(ids[1:])))
        logits[repeated] = torch.where(logits[repeated] > 0, logits[repeated] / 3, logits[repeated] * 3)
        assert token == int(allowed[logits[allowed].argmax()])
        ids.append(token)


def test_random_numbers_are_a_function_of_seed_prompt_and_copy() -> None:
    def first(seed: int, prompt: str, copy: int) -> list[float]:
        numbers = RandomNumbers(seed, PROTEIN.encode(prompt).astype(np.int64), copy)
        return [numbers.next() for _ in range(600)]

    base = first(1, "MKV", 0)
    assert base == first(1, "MKV", 0)
    assert len(set(base)) == 600
    assert 0.45 < sum(base) / 600 < 0.55
    for other in (first(2, "MKV", 0), first(1, "MKA", 0), first(1, "MKV", 1), first(1, "", 0)):
        assert not set(base) & set(other)


def test_the_state_is_as_large_behind_a_long_prompt_as_behind_a_short_one() -> None:
    model = make()
    sizes = []
    for length in (20, 400):
        text = np.array([PROTEIN.cls_id, *PROTEIN.encode("LAGVSERTIDPKQNFYMHWC" * (length // 20))], dtype=np.int64)
        with torch.no_grad():
            state, _ = read_prompts(model, [text], 64, torch.device("cpu"))
        sizes.append({name: tuple(value.shape) for name, value in state.before.items()})
    assert sizes[0] == sizes[1]


def test_positions_that_end_are_refused_before_anything_is_generated() -> None:
    config = ModelConfig.parse(
        {
            "d_model": 16,
            "n_layers": 1,
            "head_dim": 8,
            "causal": True,
            "positions": {"kind": "learned", "max_length": 12},
        }
    )
    model = CausalLM(config, PROTEIN).eval()
    found = generate(model, ["MKV", "MKVLAT"], settings(max_new_tokens=6))
    assert max(len(one.tokens) for one in found) <= 6
    with pytest.raises(SequenceError, match="make 13 positions, but this model has 12; use at most 6 new tokens"):
        generate(model, ["MKV", "MKVLAT"], settings(max_new_tokens=7))
