"""Atomic writing, disk space, devices, and the words for people."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.devices import keep_freed_memory, resolve_device, resolve_dtype
from protlat.errors import ConfigError, MissingExtraError, OutputError
from protlat.files import atomic_path, format_bytes, require_disk_space, sha256_file, write_json
from protlat.reporting import format_count, format_seconds, peak_memory_bytes, progress


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("old")

    def broken() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken()
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_temporary_names_keep_the_ending(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "x.h5") as temporary:
        assert temporary.suffix == ".h5"
        temporary.write_bytes(b"")


def test_json_and_checksum(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": "ü"})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "b": 1,\n  "a": "ü"\n}\n'
    (tmp_path / "abc").write_bytes(b"abc")
    # The first test vector of FIPS 180-2.
    assert sha256_file(tmp_path / "abc").startswith("ba7816bf8f01cfea")


def test_disk_space_is_checked_before_the_folder_exists(tmp_path: Path) -> None:
    require_disk_space(tmp_path / "not" / "yet", 1, "a test")
    with pytest.raises(OutputError, match=r"a test needs about 1000000\.0 TB"):
        require_disk_space(tmp_path / "not" / "yet", 10**18, "a test")


@pytest.mark.parametrize(("size", "text"), [(999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB")])
def test_sizes_for_people(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_counts_and_times_for_people() -> None:
    assert [format_count(x) for x in (5, 0.25, 12_345, 2_345_678, 3e9)] == ["5", "0.2", "12,345", "2.35M", "3.00G"]
    assert [format_seconds(x) for x in (5.4, 185, 7_800)] == ["5 s", "3 min 5 s", "2 h 10 min"]


def test_progress_counts_off_a_terminal() -> None:
    with progress("work", 10, "steps") as line:
        for _ in range(4):
            line.advance(2.5, "note")
    assert line.done == 10
    assert line.note == "note"


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_dtype("float32", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cpu")) in (torch.float32, torch.bfloat16)
    with pytest.raises(ConfigError, match="not a device"):
        resolve_device("gpu")
    with pytest.raises(ConfigError, match="CUDA devices are visible"):
        resolve_device("cuda:99")
    with pytest.raises(ConfigError, match="use auto, float32 or bfloat16"):
        resolve_dtype("int3", torch.device("cpu"))


def test_keeping_freed_memory_says_whether_it_did() -> None:
    assert keep_freed_memory() in (True, False)
    assert peak_memory_bytes() > 10_000_000


def test_missing_extra_says_how_to_get_it() -> None:
    assert str(MissingExtraError("anndata", "anndata", ".h5ad output")).endswith("pip install 'protlat[anndata]'")
