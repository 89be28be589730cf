"""The whole way on bundled proteins: prep, pretrain, embed, predict, and two pictures."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
from pydantic import Field

from protlat.config import Config
from protlat.errors import OutputError
from protlat.files import atomic_path
from protlat.plotting import new_figure, require_plotting

log = logging.getLogger(__name__)

TAG_PATTERN = r"^(.+)_\d+$"
_FOLDERS = ("shards", "run")


class DemoConfig(Config):
    """Size of the demonstration."""

    output: str = "demo-output"
    """Folder to write."""
    max_steps: int = Field(300, ge=1)
    """Training steps; 300 take about a minute on two cores."""
    tokens_per_batch: int = Field(4096, ge=256)
    """Tokens of one step."""
    seed: int = Field(0, ge=0)
    """Fixes split, order, masks and weights."""


def run(config: DemoConfig, command: Callable[[list[str]], object]) -> dict[str, Path]:
    """Run the demonstration.

    Parameters
    ----------
    config : DemoConfig
    command : callable
        Runs one `protlat` command line, given as a list of words; each is logged before it runs, so that a reader can
        repeat it.

    Returns
    -------
    dict of str to Path
        What was made, by a short description.

    Raises
    ------
    OutputError
        The folder holds something else than an earlier demonstration.
    """
    require_plotting("protlat demo")
    out = Path(config.output)
    _check_folder(out)
    fasta = out / "proteins.fasta"
    with atomic_path(fasta) as temporary:
        temporary.write_bytes(resources.files("protlat").joinpath("demo_data", "proteins.fasta").read_bytes())
    one = out / "one_protein.fasta"
    _write_short_record(fasta, one)
    vectors, residues = out / "embeddings.parquet", out / "embeddings.h5"
    lines = [
        ["prep", fasta, "-o", out / "shards", "--tag-pattern", TAG_PATTERN, "--valid-fraction", "0.1", "--overwrite"],
        ["pretrain", out / "shards", "--model", "tiny", "-o", out / "run", "--overwrite", "--seed", config.seed,
         "--max-steps", config.max_steps, "--tokens-per-batch", config.tokens_per_batch,
         "--eval-every", max(config.max_steps // 5, 1)],
        ["embed", fasta, "-m", out / "run", "-o", vectors, "-o", residues, "--include", "mean", "--overwrite"],
        ["predict", "masked", one, "-m", out / "run", "--all-positions", "-o", out / "masked.tsv",
         "--plot", out / "masked.png", "--overwrite"],
    ]  # fmt: skip
    for line in lines:
        words = [str(word) for word in line]
        log.info("\n$ protlat %s", shlex.join(words))
        command(words)
    picture = out / "embeddings_map.png"
    draw_map(vectors, picture)
    return {
        "loss curve": out / "run" / "loss_curve.png",
        "map of the embeddings": picture,
        "masked-residue heat map": out / "masked.png",
        "embeddings (one row a protein)": vectors,
        "embeddings (HDF5)": residues,
        "masked-residue table": out / "masked.tsv",
        "model": out / "run" / "model",
        "training metrics": out / "run" / "metrics.jsonl",
        "shards": out / "shards",
    }


def _check_folder(out: Path) -> None:
    """Refuse a folder that some other work lives in, since the demonstration overwrites."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: is a file; choose another folder with -o")
    if out.is_dir() and any(out.iterdir()) and not (out / "proteins.fasta").is_file():
        raise OutputError(f"{out}: not empty and not an earlier demonstration; choose another folder with -o")


def _write_short_record(source: Path, target: Path) -> None:
    """The first protein that fits two panels of the heat map."""
    records = source.read_text(encoding="utf-8").split(">")[1:]
    chosen = next(r for r in records if len("".join(r.splitlines()[1:])) <= 160)
    with atomic_path(target) as temporary:
        temporary.write_text(">" + chosen, encoding="utf-8")


def draw_map(vectors: str | Path, picture: str | Path) -> None:
    """Project mean vectors to two principal components and colour them by collection.

    Parameters
    ----------
    vectors : path
        Parquet file of `protlat embed` with one vector column.
    picture : path
        PNG to write.
    """
    import pyarrow.parquet as pq
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    table = pq.read_table(vectors)
    column = next(name for name in table.column_names if name.startswith("mean"))
    flat = table.column(column).combine_chunks().flatten().to_numpy(zero_copy_only=False)
    x = StandardScaler().fit_transform(flat.reshape(len(table), -1).astype(np.float64))
    pca = PCA(2, random_state=0)
    points = pca.fit_transform(x)
    tags = np.array([name.rsplit("_", 1)[0] for name in table.column("identifier").to_pylist()])
    figure = new_figure(7.5, 5.5)
    axes = figure.add_subplot()
    for tag in sorted(set(tags)):
        mine = points[tags == tag]
        axes.scatter(mine[:, 0], mine[:, 1], s=14, alpha=0.8, label=tag.replace("_", " "))
    first, second = 100 * pca.explained_variance_ratio_
    axes.set_xlabel(f"first component ({first:.0f} % of variance)")
    axes.set_ylabel(f"second component ({second:.0f} % of variance)")
    axes.set_title(f"Mean embeddings of {len(table)} proteins")
    axes.legend(title="collection", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    with atomic_path(picture) as temporary:
        figure.savefig(temporary, format="png")
