"""Memory does not grow with the input, children included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

_SCRIPT = """
import json, resource, sys
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.flow import run
from protlat.reporting import peak_memory_bytes
if __name__ == "__main__":
    values = {"inputs": [sys.argv[1]], "output": sys.argv[2], "block_bytes": 1 << 18, "bucket_rows": 5000, "workers": 2,
              "shard_tokens": 1 << 22, "split": {"valid_fraction": 0.05, "cluster_method": "none"}}
    manifest = run(PrepConfig.parse(values))
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps([peak_memory_bytes(), children, manifest.account["records_written"], manifest.account["duplicate_sequences"]]))
"""


def make_fasta(path: Path, n_records: int) -> None:
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)
    with open(path, "wb") as handle:
        for number in range(n_records):
            handle.write(b">r%d\n%s\n" % (number, rng.choice(letters, 300).tobytes()))
            if number % 10 == 0:
                handle.write(b">again%d\n%s\n" % (number, letters.tobytes()))


def peaks(folder: Path, n_records: int) -> list[int]:
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    make_fasta(folder / f"{n_records}.fasta", n_records)
    done = subprocess.run(
        [sys.executable, str(script), str(folder / f"{n_records}.fasta"), str(folder / f"{n_records}")],
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


def test_memory_is_bounded(tmp_path: Path) -> None:
    small, large = peaks(tmp_path, 5_000), peaks(tmp_path, 40_000)
    assert large[2:] == [40_001, 3_999]
    # Bytes; eight times the input (1.5 to 12 MB of residues) may cost no more than buffers that fill up.
    for before, after in zip(small[:2], large[:2], strict=True):
        assert after - before < 40_000_000
        assert after < 500_000_000
