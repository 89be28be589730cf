"""Counted work against sums made by hand."""

import pytest
import torch
from torch import nn

from protlat.alphabet import PROTEIN
from protlat.bench.ceilings import Ceilings, measure_ceilings
from protlat.bench.counting import CountProducts, Product, Work
from protlat.bench.roofline import roofline
from protlat.models import Encoder, ModelConfig
from protlat.ops.segments import Segments

SOFTMAX = ModelConfig.parse(
    {"d_model": 16, "n_layers": 2, "head_dim": 8, "attention": [{"kind": "softmax", "n_heads": 2}], "local_conv": None}
)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_linear_layer_counts_the_same_with_and_without_inference_mode(guard: type) -> None:
    layer, x = nn.Linear(6, 4), torch.randn(10, 6)
    with guard(), CountProducts() as count:
        layer(x)
    assert count.work.flops == 2 * 10 * 6 * 4
    # Input, weights, bias and output, four bytes each; the bias is read by the product itself.
    assert count.work.n_bytes == 4 * (10 * 6 + 6 * 4 + 4 + 10 * 4)


def test_backward_passes_count_twice_the_forward_pass() -> None:
    a, b = torch.randn(3, 5, 7, requires_grad=True), torch.randn(3, 7, 2, requires_grad=True)
    with CountProducts() as count:
        (a @ b).sum().backward()
    assert count.work.flops == 3 * (2 * 3 * 5 * 7 * 2)


def test_an_encoder_counts_what_its_layers_say() -> None:
    lengths = (5, 11)
    model = Encoder(SOFTMAX, PROTEIN).eval()
    tokens = torch.full((sum(lengths),), 5)
    with torch.inference_mode():
        segments = Segments(lengths)
        model(tokens, segments)
        with CountProducts() as count:
            model(tokens, segments)
    width, rows = 16, 16
    # Projection, output mix, feed-forward at expansion 4 (8 E^2 weights), gates of one value a head.
    weights = 3 * width**2 + width**2 + 8 * width**2
    gates = sum(p.numel() for n, p in model.named_parameters() if "project_gates.weight" in n) // 2
    attention = sum(2 * 2 * n * n * width for n in lengths)
    assert count.work.flops == 2 * (2 * rows * (weights + gates) + attention)


def test_the_floor_takes_the_nearer_ceiling_of_each_product() -> None:
    work = Work([Product(flops=100, n_bytes=1), Product(flops=1, n_bytes=50)])
    assert work.least_s(Ceilings(torch.float32, flops=10, bandwidth=5)) == 100 / 10 + 50 / 5


def test_a_roofline_is_whole() -> None:
    ceilings = Ceilings(torch.float32, flops=1e9, bandwidth=1e9)
    for mode in ("inference", "training"):
        found = roofline(SOFTMAX, mode, (20, 12), ceilings, torch.device("cpu"), repeats=1)
        assert found.n_tokens == 32
        assert found.floor <= found.product_floor * (1 + 1e-9)
        assert found.product_floor == pytest.approx(32e9 / found.work.flops)
        assert found.of_products == found.measured / found.product_floor > 0


def test_ceilings_are_positive_and_of_their_dtype() -> None:
    found = measure_ceilings(torch.float32, torch.device("cpu"), repeats=1)
    assert found.dtype == torch.float32
    assert found.flops > 1e8
    assert found.bandwidth > 1e8
