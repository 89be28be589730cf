"""Reversible layers: the gradients of the plain network of the same equations, at a memory that depth does not raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import CausalLM, Encoder, MaskedLM, ModelConfig
from protlat.nn.block import Block
from protlat.nn.cross_attention import Context
from protlat.nn.reversible import reversible_chain
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments

EXACT = {"rtol": 1e-10, "atol": 1e-11}
SETTINGS = {
    "d_model": 16,
    "n_layers": 3,
    "head_dim": 8,
    "attention": [{"kind": "window", "n_heads": 1, "radius": 4}, {"kind": "efficient", "n_heads": 1}],
    "reversible": True,
}
OPTIONS = {
    "default": {},
    "causal": {"causal": True},
    "axial": {"axial_block": {"width": 4}},
    "product-key": {
        "feed_forward_by_layer": {1: {"kind": "product_key", "n_heads": 2, "n_keys": 6, "top_k": 3, "key_dim": 4}}
    },
    "token-shift": {"token_shift": True, "norm": "rms"},
    "chunks": {"feed_forward": {"kind": "glu", "chunks": 3}},
}


def layers(n: int, dim: int, rng: torch.Generator) -> nn.ModuleList:
    made = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.3), nn.Linear(4 * dim, dim))
        for _ in range(n)
    ).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    return made


def plain_chain(
    x: torch.Tensor, additions: list[Callable[[torch.Tensor], torch.Tensor]], wanted: set[int]
) -> dict[int, torch.Tensor]:
    """y1 = x1 + f(x2), y2 = x2 + g(y1), written out."""
    x1 = x2 = x
    out = {0: x} if 0 in wanted else {}
    for number in range(0, len(additions), 2):
        x1 = x1 + additions[number](x2)
        x2 = x2 + additions[number + 1](x1)
        if number + 2 in wanted:
            out[number + 2] = (x1 + x2) / 2
    return out


def test_chain_has_the_gradients_of_its_equations_with_dropout(rng: torch.Generator) -> None:
    net = layers(10, 6, rng)
    x = torch.randn(20, 6, generator=rng, dtype=torch.float64).requires_grad_()
    weight = torch.randn(20, 6, generator=rng, dtype=torch.float64)
    found = []
    for chain in (plain_chain, reversible_chain):
        torch.manual_seed(4)
        out = chain(x, list(net), {0, 4, 10})
        loss = (out[10].sin() + out[4] * weight + out[0]).sum()
        inputs = [x, *net.parameters()]
        first = torch.autograd.grad(loss, inputs, retain_graph=True)
        # A graph that is kept can be walked again.
        found += [[*out.values(), *first], [*out.values(), *torch.autograd.grad(loss, inputs)]]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, **EXACT)


def test_a_loss_on_an_inner_depth_alone(rng: torch.Generator) -> None:
    net = layers(8, 6, rng).eval()
    x = torch.randn(20, 6, generator=rng, dtype=torch.float64)
    found = [
        torch.autograd.grad(chain(x, list(net), {4, 8})[4].sin().sum(), list(net[:4].parameters()))
        for chain in (plain_chain, reversible_chain)
    ]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_frozen_layers_and_frozen_input(rng: torch.Generator) -> None:
    net = layers(6, 6, rng).eval()
    for frozen in (0, 1, 3):
        net[frozen].requires_grad_(False)
    x = torch.randn(20, 6, generator=rng, dtype=torch.float64)
    trained = [p for p in net.parameters() if p.requires_grad]
    found = [
        torch.autograd.grad(chain(x, list(net), {6})[6].sin().sum(), trained)
        for chain in (plain_chain, reversible_chain)
    ]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_autocast_is_replayed(rng: torch.Generator) -> None:
    net = layers(8, 16, rng).float()
    x = torch.randn(50, 16, generator=rng)
    found = []
    for chain in (plain_chain, reversible_chain):
        torch.manual_seed(4)
        with torch.autocast("cpu", torch.bfloat16):
            out = chain(x, list(net), {8})[8]
        # Outside of the region, as training loops do.
        found.append(torch.autograd.grad(out.square().sum(), list(net.parameters())))
    for a, b in zip(*found, strict=True):
        # Inputs found again differ from the first ones by float32 rounding, which now and then rounds otherwise to bf16.
        assert (a - b).norm() < 0.01 * a.norm()


def test_streams_are_float32_under_bfloat16(rng: torch.Generator) -> None:
    """32 additions are undone in bfloat16 as well as they would be in float32: gradients of the input agree to 1 %."""
    net = layers(32, 16, rng).bfloat16().eval()
    x = torch.randn(50, 16, generator=rng).bfloat16().requires_grad_()

    def kept(x: torch.Tensor) -> torch.Tensor:
        """The same streams with an ordinary graph."""
        x1 = x2 = x.float()
        for number in range(0, 32, 2):
            x1 = x1 + net[number](x2.bfloat16())
            x2 = x2 + net[number + 1](x1.bfloat16())
        return ((x1 + x2) / 2).bfloat16()

    theirs = torch.autograd.grad(kept(x).float().square().sum(), x)[0].float()
    out = reversible_chain(x, list(net))[32]
    assert out.dtype == torch.bfloat16
    ours = torch.autograd.grad(out.float().square().sum(), x)[0].float()
    assert (ours - theirs).norm() < 0.01 * theirs.norm()


def build(options: dict, kind: type[MaskedLM] | type[CausalLM]) -> MaskedLM | CausalLM:
    dropout = {"embedding": 0.1, "residual": 0.2, "feed_forward": 0.3, "attention_layer": 0.1}
    torch.manual_seed(3)
    model = kind(ModelConfig.parse({**SETTINGS, "local_conv": None, "dropout": dropout, **options}), PROTEIN).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return model


def plain_layers(encoder: Encoder, tokens: torch.Tensor, segments: Segments) -> dict[int, torch.Tensor]:
    """The encoder's layers by `plain_chain`."""
    x = encoder.embedding_dropout(encoder.positions(encoder.widen(encoder.embedding(tokens)), segments))
    additions, ends = [], {0: 0}
    for layer in range(encoder.config.n_layers):
        for stack in (encoder.blocks, encoder.axial_blocks):
            for block in stack[layer : layer + 1]:
                assert isinstance(block, Block)
                additions += [lambda x, b=block: b.attend(x, segments), lambda x, b=block: b.feed(x, segments)]
        ends[layer + 1] = len(additions)
    means = plain_chain(x, additions, set(ends.values()))
    out = {number: means[end] for number, end in ends.items()}
    last = encoder.config.n_layers
    return {**out, last: encoder.final_norm(out[last])}


@pytest.mark.parametrize("name", OPTIONS)
def test_model_has_the_gradients_of_its_equations(rng: torch.Generator, name: str) -> None:
    model = build(OPTIONS[name], CausalLM if name == "causal" else MaskedLM)
    # 40 tokens are a round number: the filler of a batch would draw dropout of its own.
    tokens, segments = torch.randint(4, 24, (40,), generator=rng), Segments([25, 1, 14])
    found = []
    for run in (lambda: plain_layers(model.encoder, tokens, segments),
                lambda: model.encoder(tokens, segments, layers=(0, 1, 2, 3))):  # fmt: skip
        torch.manual_seed(7)
        out = run()
        loss = sum((number + 1) * x.sin().sum() for number, x in out.items())
        found.append([*(out[n] for n in range(4)), *torch.autograd.grad(loss, list(model.encoder.parameters()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_gradients_reach_a_context(rng: torch.Generator) -> None:
    encoder = build({"context": {"kind": "efficient", "n_heads": 2}}, MaskedLM).encoder
    tokens, segments = torch.randint(4, 24, (40,), generator=rng), Segments([25, 15])
    vectors = torch.randn(13, 16, generator=rng, dtype=torch.float64).requires_grad_()
    context = Context(vectors, Segments([9, 4]))

    def plainly() -> torch.Tensor:
        x = encoder.embedding_dropout(encoder.positions(encoder.embedding(tokens), segments))
        additions = []
        for block, cross in zip(encoder.blocks, encoder.cross_blocks, strict=True):
            additions += [lambda x, b=block: b.attend(x, segments), lambda x, b=block: b.feed(x, segments)]
            additions += [
                lambda x, c=cross: c.attend(x, segments, context=context),
                lambda x, c=cross: c.feed(x, segments),
            ]
        return encoder.final_norm(plain_chain(x, additions, {len(additions)})[len(additions)])

    def ours() -> torch.Tensor:
        return encoder(tokens, segments, context=vectors, context_segments=context.segments)[3]

    found = []
    for run in (plainly, ours):
        torch.manual_seed(7)
        found.append(torch.autograd.grad(run().sin().sum(), [vectors, *encoder.parameters()]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_gradients_through_a_state_are_those_of_the_whole(rng: torch.Generator) -> None:
    model = build({"causal": True, "dropout": {}}, CausalLM)
    tokens = torch.randint(4, 24, (30,), generator=rng)
    weight = torch.randn(30, 33, generator=rng, dtype=torch.float64)
    parameters = list(model.parameters())
    whole = model(tokens, Segments([30]))
    wanted = torch.autograd.grad((whole * weight).sum(), parameters)
    state, logits = RecurrentState(), []
    for start, stop in ((0, 11), (11, 12), (12, 30)):
        logits.append(model(tokens[start:stop], Segments([stop - start], offsets=[start]), state=state))
        state = state.next(detach=False)
    found = torch.autograd.grad((torch.cat(logits) * weight).sum(), parameters)
    torch.testing.assert_close(torch.cat(logits), whole, **EXACT)
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_a_loss_on_a_state_alone_is_refused(rng: torch.Generator) -> None:
    model = build({"causal": True}, CausalLM)
    state = RecurrentState()
    model(torch.randint(4, 24, (9,), generator=rng), Segments([9]), state=state)
    name = next(name for name, value in state.after.items() if name.startswith("blocks.0.") and value.requires_grad)
    with pytest.raises(RuntimeError, match="detach a state"):
        state.after[name].sum().backward()


def test_together_with_checkpointing_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint_activations does not act in a reversible model"):
        ModelConfig.parse({"reversible": True, "checkpoint_activations": True})


class Live(TorchDispatchMode):
    """The most bytes that large tensors held at one time, forward and backward."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least, self.peak_bytes = at_least, 0
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() >= self.at_least:
                reference = StorageWeakRef(tensor.untyped_storage())
                self.storages[reference.cdata] = (reference, tensor.untyped_storage().nbytes())
        self.storages = {key: kept for key, kept in self.storages.items() if not kept[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self.storages.values()))
        return out


def peak_bytes(n_layers: int, reversible: bool) -> int:
    n_tokens = 2048
    config = ModelConfig.parse({**SETTINGS, "n_layers": n_layers, "reversible": reversible})
    model = MaskedLM(config, PROTEIN)
    tokens = torch.randint(4, 24, (n_tokens,), generator=torch.Generator().manual_seed(0))
    # Weights and their gradients are smaller than one activation, and are not counted.
    with Live(n_tokens * 16 * 4) as live:
        model.encoder(tokens, Segments([n_tokens]))[n_layers].square().sum().backward()
    return live.peak_bytes


def test_activation_memory_does_not_grow_with_depth() -> None:
    assert peak_bytes(24, True) <= 1.05 * peak_bytes(3, True)
    # What the measure says of the plain network
    assert peak_bytes(24, False) > 6 * peak_bytes(3, False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_random_numbers_of_a_gpu_are_replayed() -> None:
    net = layers(8, 16, torch.Generator().manual_seed(0)).cuda()
    x = torch.randn(50, 16, dtype=torch.float64, device="cuda")
    found = []
    for chain in (plain_chain, reversible_chain):
        torch.manual_seed(4)
        out = chain(x, list(net), {8})[8]
        found.append(torch.autograd.grad(out.square().sum(), list(net.parameters())))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **EXACT)
