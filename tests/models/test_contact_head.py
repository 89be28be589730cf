"""The contact head: symmetry, batch-mates, masks, starting point, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from protlat.errors import CheckpointError, ConfigError
from protlat.models.contact_head import ContactHead, ContactHeadConfig, Tiles

SMALL = ContactHeadConfig(d_hidden=16, rank=8, channels=12, heads=2, head_dim=4, dilations=(1, 2), dropout=0.0)


def small_head(mixer: str = "linear_attention", seed: int = 0) -> ContactHead:
    """A head in float64 whose every part acts: weights that start at zero are drawn too."""
    torch.manual_seed(seed)
    head = ContactHead(ContactHeadConfig.parse({**SMALL.to_plain(), "mixer": mixer}), 10).double().eval()
    for module in (head.out, *(block.out for block in head.blocks)):
        torch.nn.init.normal_(module.weight, std=0.5)
    head.prior.normal_()
    return head


def whole(n: int, start: int = 0, chain: int = 0) -> Tiles:
    rows = torch.arange(start, start + n)[None]
    return Tiles(rows, rows, torch.tensor([chain]))


def vectors(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, 10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("mixer", ["linear_attention", "convolution"])
def test_a_chain_does_not_feel_its_batch_mates(mixer: str) -> None:
    head, n = small_head(mixer), 20
    alone = head(head.read([vectors(n, 1)], [np.arange(n)]), whole(n))
    parts = head.read([vectors(13, 2), vectors(n, 1)], [np.arange(13), np.arange(n)])
    mate = torch.full((1, n), -1)
    mate[0, :13] = torch.arange(13)
    tiles = Tiles(
        torch.cat([mate, torch.arange(13, 13 + n)[None]]),
        torch.cat([mate, torch.arange(13, 13 + n)[None]]),
        torch.tensor([0, 1]),
    )
    together = head(parts, tiles)[1:]
    where = whole(n).mask[:, None].expand_as(alone)
    torch.testing.assert_close(together[where], alone[where], rtol=1e-9, atol=1e-11)


def test_crops_know_where_they_are() -> None:
    """One block without attention: inside a crop, beyond the reach of its edges, numbers are those of the whole map."""
    head, n = small_head("convolution"), 40
    parts = head.read([vectors(n, 3)], [np.arange(n)])
    full = head(parts, whole(n))
    crop = head(parts, Tiles(torch.arange(5, 25)[None], torch.arange(18, 38)[None], torch.tensor([0])))
    reach = head.reach
    assert reach == 5
    inner = crop[:, :, reach:-reach, reach:-reach]
    expected = full[:, :, 5 + reach : 25 - reach, 18 + reach : 38 - reach]
    mask = whole(n).mask[:, 5 + reach : 25 - reach, 18 + reach : 38 - reach]
    torch.testing.assert_close(inner[0][:, mask[0]], expected[0][:, mask[0]], rtol=1e-9, atol=1e-11)


def test_unobserved_residues_count_in_the_separation() -> None:
    head, n = small_head(), 12
    gap = np.arange(n) + 30 * (np.arange(n) >= 6)
    near = head(head.read([vectors(n, 4)], [np.arange(n)]), whole(n))
    far = head(head.read([vectors(n, 4)], [gap]), whole(n))
    assert (near - far)[0, :, 2, 9].abs().max() > 1e-3


def test_crops_of_a_chain_share_its_state() -> None:
    head, n = small_head(), 30
    parts = head.read([vectors(n, 5)], [np.arange(n)])
    rows = torch.stack([torch.arange(0, 10), torch.arange(0, 10)])
    columns = torch.stack([torch.arange(0, 10), torch.arange(20, 30)])
    shared = head(parts, Tiles(rows, columns, torch.tensor([0, 0])))
    apart = head(parts, Tiles(rows, columns, torch.tensor([0, 1])))
    assert (shared - apart)[0, :, 2, 8].abs().max() > 1e-6


def test_a_new_head_predicts_the_frequencies_it_was_told() -> None:
    torch.manual_seed(0)
    head = ContactHead(SMALL, 10).eval()
    head.prior.copy_(torch.randn(head.prior.shape).log_softmax(1))
    logits = head(head.read([vectors(15, 1).float()], [np.arange(15)]), whole(15))
    expected = head.prior[11].log_softmax(0)
    torch.testing.assert_close(logits[0, :, 2, 13].log_softmax(0), expected, rtol=1e-5, atol=1e-5)
    n_close = SMALL.edges_angstrom.index(8.0) + 1
    odds = expected[:n_close].exp().sum() / expected[n_close:].exp().sum()
    torch.testing.assert_close(head.contact_logits(logits)[0, 2, 13], odds.log(), rtol=1e-4, atol=1e-5)


def test_every_weight_gets_a_gradient() -> None:
    head = small_head().train()
    logits = head(head.read([vectors(16, 1)], [np.arange(16)]), whole(16))
    logits[whole(16).mask[:, None].expand_as(logits)].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in head.parameters())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"edges_angstrom": (4.0, 10.0)}, "hold 8, the contact distance"),
        ({"edges_angstrom": (10.0, 8.0)}, "must ascend"),
        ({"taps": 4}, "odd"),
        ({"dilations": ()}, "at least one block"),
        ({"mixer": "softmax"}, "linear_attention"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ContactHeadConfig.parse(values)


def test_a_head_that_does_not_fit_its_weights_is_refused(tmp_path: Path) -> None:
    from protlat.alphabet import PROTEIN
    from protlat.models import MaskedLM, ModelConfig
    from protlat.models.contact import head_settings, load_contact_head
    from protlat.models.head_file import HeadFile, write_head

    MaskedLM(ModelConfig.parse({"d_model": 16, "n_layers": 1, "head_dim": 8}), PROTEIN).save_pretrained(tmp_path)
    head = ContactHead(SMALL, 16)
    settings = head_settings(head, "vectors")
    file = HeadFile(task="contacts", type="pair", mode="head", head=settings)
    write_head(tmp_path, file, head.state_dict())
    loaded = load_contact_head(tmp_path)
    assert loaded[3] == "vectors"
    for name, value in head.state_dict().items():
        torch.testing.assert_close(loaded[2].state_dict()[name], value, rtol=0, atol=0)
    write_head(tmp_path, file.model_copy(update={"head": {**settings, "rank": 9}}), head.state_dict())
    with pytest.raises(CheckpointError, match=r"has shape \(40, 16\), but head.json says"):
        load_contact_head(tmp_path)
    write_head(tmp_path, file.model_copy(update={"head": {**settings, "kind": "other"}}), head.state_dict())
    with pytest.raises(CheckpointError, match="not a contact head"):
        load_contact_head(tmp_path)
