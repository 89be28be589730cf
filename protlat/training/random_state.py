"""States of the random generators of a process, as tensors in a safetensors file: no pickle."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch


def save_random_state(path: str | Path) -> None:
    """Write the states of torch (CPU and, when in use, CUDA), numpy and Python."""
    from safetensors.torch import save_file

    version, python_keys, python_gauss = random.getstate()
    name, numpy_keys, numpy_pos, has_gauss, numpy_gauss = np.random.get_state()  # noqa: NPY002  the global one is meant
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(numpy_keys, dtype=np.int64)),
        "python": torch.tensor(python_keys, dtype=torch.int64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors["cuda"] = torch.cuda.get_rng_state()
    rest = {
        "python": [version, python_gauss],
        "numpy": [str(name), int(numpy_pos), int(has_gauss), float(numpy_gauss)],
    }
    save_file(tensors, path, metadata={"rest": json.dumps(rest)})


def load_random_state(path: str | Path) -> None:
    """Set the generators to what `save_random_state` wrote."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dictionary
        rest: dict[str, Any] = json.loads(file.metadata()["rest"])
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    name, pos, has_gauss, gauss = rest["numpy"]
    np.random.set_state((name, tensors["numpy"].numpy().astype(np.uint32), pos, has_gauss, gauss))  # noqa: NPY002
    version, python_gauss = rest["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), python_gauss))
