"""Zeros are no memory: sequences that begin anew beside others that go on."""

from __future__ import annotations

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.models import CausalLM
from protlat.nn.attention import EfficientAttentionConfig
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments
from tests.models.variants import CAUSAL


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("length", [1, 6])
def test_a_sequence_may_begin_beside_others_that_go_on(name: str, length: int) -> None:
    torch.manual_seed(0)
    model = CausalLM(CAUSAL[name], PROTEIN).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
        sequences = [torch.randint(4, 24, (n,)) for n in (7 + length, length, 3 + length, length)]
        state = RecurrentState()
        model(torch.cat([sequences[0][:7], sequences[2][:3]]), Segments([7, 3], offsets=[0, 0]), state=state)
        state = state.next().select(torch.tensor([0, -1, 1, -1]))
        segments = Segments([length] * 4, offsets=[7, 0, 3, 0])
        read = model(torch.cat([x[-length:] for x in sequences]), segments, state=state).split(length)
        for sequence, logits in zip(sequences, read, strict=True):
            whole = model(sequence, Segments([len(sequence)]))[-length:]
            torch.testing.assert_close(logits, whole, rtol=1e-7, atol=1e-9)


def test_keys_far_below_zero_do_not_meet_a_greatest_key_of_zero() -> None:
    core = EfficientAttentionConfig(n_heads=1).build(8, True)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 6, 1, 8)
    k = k - 200
    whole = core(q, k, v, Segments([6]))
    state = RecurrentState()
    core(q[:2], k[:2], v[:2], Segments([2], offsets=[0]), state=state)
    state = state.next().select(torch.tensor([0, -1]))
    both = (torch.cat([x[2:], x]) for x in (q, k, v))
    read = core(*both, Segments([4, 6], offsets=[2, 0]), state=state)
    torch.testing.assert_close(read, torch.cat([whole[2:], whole]), rtol=1e-5, atol=1e-6)
