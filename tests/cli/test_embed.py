from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from protlat.cli.embed import embed, embed_values
from protlat.cli.words import is_integer, one_of, spread_words
from protlat.pipelines.embed import EmbedConfig

KINDS = {"--include": one_of("mean", "per_tok", "cls"), "--repr-layers": is_integer}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--include mean per_tok", "--include=mean --include=per_tok"),
        ("--include mean per_tok in.fa", "--include=mean --include=per_tok in.fa"),
        ("--include mean --include cls", "--include=mean --include=cls"),
        ("--include mean,cls x", "--include=mean --include=cls x"),
        ("--include=mean per_tok", "--include=mean --include=per_tok"),
        ("--repr-layers 0 -1 -o x", "--repr-layers=0 --repr-layers=-1 -o x"),
        ("--repr-layers -1", "--repr-layers=-1"),
        ("in.fa -m run", "in.fa -m run"),
        ("--include", "--include"),
        ("--include wrong mean", "--include=wrong --include=mean"),
        ("-m run -- --include mean", "-m run -- --include mean"),
    ],
)
def test_several_words_after_one_option(given: str, expected: str) -> None:
    assert spread_words(given.split(), KINDS) == expected.split()


def parsed(arguments: str) -> EmbedConfig:
    """The config that a command line makes."""
    found: dict = {}
    command = click.Command.make_context(embed, "embed", arguments.split())
    inputs = (*command.params.pop("inputs"), *command.params.pop("more_inputs"))
    path, overrides = command.params.pop("config_path"), command.params.pop("overrides")
    found.update(embed_values(inputs, command.params))
    return EmbedConfig.load(path, overrides, **found)


def test_the_command_line_reaches_the_config(tmp_path: Path) -> None:
    config = parsed(
        f"a.fa -i b.fa -m {tmp_path} -o x.h5 -o y.npz --include per_tok mean --repr-layers 0 -1 --store float16 "
        "--long window --window 100 --overlap 20 --max-length 50 --unknown keep --gaps strip --stops skip --dtype float32 "
        "--toks-per-batch 77 --split valid --resume --separate --threads 2 --device cpu --format h5"
    )
    assert config.inputs == ("a.fa", "b.fa")
    assert config.outputs == ("x.h5", "y.npz")
    assert config.vectors.include == ("mean", "per_tok")
    assert config.vectors.repr_layers == (0, -1)
    assert (config.long.policy, config.long.window, config.long.overlap, config.long.max_length) == (
        "window",
        100,
        20,
        50,
    )
    assert (config.policy.unknown, config.policy.gaps, config.policy.stops) == ("keep", "strip", "skip")
    assert (config.toks_per_batch, config.split, config.resume, config.threads) == (77, "valid", True, 2)
    assert (config.device, config.dtype, config.format, config.separate) == ("cpu", "float32", "h5", True)


def test_options_that_are_not_given_do_not_hide_the_config_file(tmp_path: Path) -> None:
    path = tmp_path / "embed.yaml"
    path.write_text("dtype: float32\nvectors: {include: [cls]}\nmodel: somewhere\n")
    config = parsed(f"a.fa --config {path} --set vectors.store=float16")
    assert (config.dtype, config.vectors.include, config.vectors.store) == ("float32", ("cls",), "float16")
    assert config.model == "somewhere"


def test_defaults_in_help_are_those_of_the_config() -> None:
    text = " ".join(CliRunner().invoke(embed, ["--help"], terminal_width=200, max_content_width=200).output.split())
    default = EmbedConfig()
    for option, value in (
        ("--include", default.vectors.include[0]), ("--repr-layers", default.vectors.repr_layers[0]),
        ("--store", default.vectors.store), ("--unknown", default.policy.unknown), ("--gaps", default.policy.gaps),
        ("--stops", default.policy.stops), ("--long", default.long.policy), ("--window", default.long.window),
        ("--overlap", default.long.overlap),
    ):  # fmt: skip
        assert re.search(rf"{option} [^\]]*(\[[^\]]*\][^\[]*)?\[default: {value}\]", text), option


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("a.fa --include", "Option '--include' requires an argument"),
        ("a.fa --include pertok", "'pertok' is not one of 'mean', 'per_tok', 'cls'"),
        ("a.fa --repr-layers last", "'last' is not a valid integer"),
        ("a.fa --long never", "'never' is not one of"),
    ],
)
def test_wrong_values_are_named(arguments: str, message: str) -> None:
    result = CliRunner().invoke(embed, arguments.split())
    assert result.exit_code == 2
    assert message in result.output


def test_write_config_gives_a_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "embed.yaml"
    result = CliRunner().invoke(embed, ["--write-config", str(path)])
    assert result.exit_code == 0, result.output
    assert EmbedConfig.load(path) == EmbedConfig()
