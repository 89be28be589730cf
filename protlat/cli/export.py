"""`protlat export`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="ONNX file to write.")
def export(model: str, output: str) -> None:
    """Write the encoder of MODEL as an ONNX file, for programs without torch.

    Inputs: tokens (batch, length), int64 ids with <cls> and <eos>; mask (batch, length), true where a token is. Output:
    vectors (batch, length, width), zero in the padding. The file's metadata holds the alphabet.

    Example: protlat export run -o encoder.onnx
    """
    from protlat.files import format_bytes
    from protlat.inference.onnx_export import export_onnx
    from protlat.models import Encoder
    from protlat.reporting import print_summary

    encoder = Encoder.from_pretrained(model)
    export_onnx(encoder, output)
    print_summary(
        "export",
        {"parameters": encoder.n_parameters(), "width": encoder.config.d_model, "file": output,
         "size": format_bytes(Path(output).stat().st_size)},
    )  # fmt: skip
