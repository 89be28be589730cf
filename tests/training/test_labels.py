"""Losses, batches and rates of fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.testing import assert_close

from protlat.alphabet import PROTEIN
from protlat.inference.feature_cache import Ragged
from protlat.models import Encoder, ModelConfig
from protlat.models.label_model import LabelModel, residues_only, train_only_reached
from protlat.nn.heads import LabelHead, LinearHeadConfig
from protlat.ops.segments import Segments
from protlat.tasks.data import LabelledSplit
from protlat.training.label_data import LabelDataset, class_counts, value_scaling
from protlat.training.label_loss import LabelLoss, balanced_weights, prior_outputs
from protlat.training.label_optim import label_groups


def test_missing_labels_have_no_gradient_and_no_weight() -> None:
    classes = torch.tensor([0, -1, 2])
    outputs = torch.randn(3, 3, requires_grad=True)
    loss = LabelLoss("residue_class")
    loss(outputs, classes).backward()
    assert outputs.grad is not None
    assert outputs.grad[1].abs().sum() == 0
    assert outputs.grad[0].abs().sum() > 0
    assert loss.amount(classes) == 2
    values = torch.tensor([1.0, torch.nan])
    outputs = torch.zeros(2, 1, requires_grad=True)
    total = LabelLoss("sequence_value")(outputs, values)
    total.backward()
    assert total.item() == 1
    assert outputs.grad is not None
    assert outputs.grad.flatten().tolist() == [-2, 0]
    none = LabelLoss("residue_class")(torch.randn(2, 3, requires_grad=True), torch.tensor([-1, -1]))
    assert none.item() == 0


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [3])
    weights = balanced_weights(np.bincount(labels, minlength=5), "sequence_class", len(labels))
    wanted = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    assert_close(weights[[0, 1, 3]].double(), torch.from_numpy(wanted), rtol=1e-6, atol=1e-6)
    assert weights[[2, 4]].tolist() == [0, 0]
    loss = LabelLoss("sequence_class", weights)
    assert loss.amount(torch.from_numpy(labels)) == pytest.approx(100, rel=1e-5)


def test_priors_are_the_shares_of_training() -> None:
    counts = np.array([60, 30, 10])
    assert_close(
        prior_outputs(counts, "sequence_class", 100, False).softmax(0), torch.tensor([0.6, 0.3, 0.1]), atol=0.01, rtol=0
    )
    assert_close(
        prior_outputs(counts, "sequence_multilabel", 100, False).sigmoid(),
        torch.tensor([0.6, 0.3, 0.1]),
        atol=0.01,
        rtol=0,
    )
    assert prior_outputs(counts, "sequence_class", 100, True).tolist() == [0, 0, 0]


def split() -> LabelledSplit:
    ids = tuple(np.full(n, 5 + n, np.uint8) for n in (3, 2, 4))
    labels = (np.array([0, 1, -1]), np.array([-1, -1]), np.array([1, 1, 1, 0]))
    return LabelledSplit(("a", "b", "c"), ids, labels)


def test_batches_of_tokens_and_of_vectors_hold_the_same_labels() -> None:
    rows = np.arange(18, dtype=np.float16).reshape(9, 2)
    features = Ragged(rows, np.array([0, 3, 5, 9]))
    tokens, vectors = (LabelDataset("residue_class", split(), found, PROTEIN) for found in (None, features))
    assert tokens.rows.tolist() == vectors.rows.tolist() == [0, 2]
    one, other = tokens.batch([1, 0]), vectors.batch([1, 0])
    assert one.labels.tolist() == other.labels.tolist() == [1, 1, 1, 0, 0, 1, -1]
    assert one.segments.lengths == (6, 5)
    assert other.segments.lengths == (4, 3)
    assert one.n_tokens == other.n_tokens == 11
    np.testing.assert_array_equal(other.inputs.numpy(), rows[[5, 6, 7, 8, 0, 1, 2]])
    assert class_counts(split(), 2).tolist() == [2, 4]
    assert len(LabelDataset("residue_class", split(), None, PROTEIN, all_rows=True)) == 3


def test_a_sequence_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    plan = LabelDataset("residue_class", split(), None, PROTEIN, all_rows=True).plan(5, 0, shuffle=False)
    assert [picks.tolist() for picks in plan.once()] == [[0], [1], [2]]


def test_values_are_standardised() -> None:
    values = LabelledSplit(("a", "b", "c"), split().ids, np.array([1.0, np.nan, 3.0], np.float32))
    assert value_scaling(values) == (2.0, 1.0)
    assert LabelDataset("sequence_value", values, None, PROTEIN, (2.0, 1.0)).batch([0, 1]).labels.tolist() == [-1, 1]


def label_model(layer: int) -> LabelModel:
    torch.manual_seed(0)
    encoder = Encoder(ModelConfig(d_model=16, n_layers=3, head_dim=8), PROTEIN)
    return LabelModel(encoder, LabelHead(LinearHeadConfig(), 16, 2, per_residue=True), layer)


def test_heads_see_residues_and_no_specials() -> None:
    x = torch.arange(9.0)[:, None]
    rows, inner = residues_only(x, Segments((5, 4)))
    assert rows.flatten().tolist() == [1, 2, 3, 6, 7]
    assert inner.lengths == (3, 2)
    model = label_model(3)
    assert model(torch.full((9,), 5), Segments((5, 4))).shape == (5, 2)


@pytest.mark.parametrize("layer", [1, 3])
def test_everything_that_is_trained_gets_a_gradient(layer: int) -> None:
    model = label_model(layer)
    train_only_reached(model)
    model(torch.full((9,), 5), Segments((5, 4))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    frozen = {name.split(".")[2] for name, p in model.named_parameters() if not p.requires_grad and "blocks" in name}
    assert frozen == ({"1", "2"} if layer == 1 else set())


def test_rates_fall_from_head_to_embedding() -> None:
    model = label_model(3)
    groups = label_groups(model, lr=1e-3, encoder_lr=1e-4, layer_decay=0.5, weight_decay=0.01)
    rate = {id(p): group["lr_ratio"] for group in groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    named = dict(model.named_parameters())
    assert len(rate) == len(named)
    wanted = {
        "head.readout.weight": 1.0, "encoder.final_norm.weight": 0.1, "encoder.blocks.2.attention.mix.weight": 0.1,
        "encoder.blocks.1.attention.mix.weight": 0.05, "encoder.blocks.0.attention.mix.weight": 0.025,
        "encoder.embedding.weight": 0.0125,
    }  # fmt: skip
    for name, value in wanted.items():
        assert rate[id(named[name])] == pytest.approx(value), name
    assert decay[id(named["encoder.embedding.weight"])] == 0
    assert decay[id(named["head.readout.bias"])] == 0
    assert decay[id(named["head.readout.weight"])] == 0.01
