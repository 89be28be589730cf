"""Metadata of the package; tool settings stand in pyproject.toml, tested versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "protlat/__init__.py").read_text(), re.M).group(1)

# The folders stay at the top level but install under protlat: `pipelines` and `data_prep` are too common as names.
PARTS = {"protlat": "protlat", **{f"protlat.{folder}": folder for folder in ("pipelines", "data_prep", "configs")}}
PACKAGES = [p for name, folder in PARTS.items() for p in [name, *(f"{name}.{s}" for s in find_packages(folder))]]

CORE = [
    "torch>=2.6",
    "deepspeed>=0.17",
    "einops>=0.7",
    "biopython>=1.83",
    "scikit-learn>=1.4",
    "click>=8.1",
    "numpy>=1.26",
    "pyarrow>=15",
    "pydantic>=2.7",
    "typing_extensions>=4.9",
    "pyyaml>=6.0",
    "safetensors>=0.4",
    "rich>=13",
    "h5py>=3.10",
    "tensorboard>=2.16",
    "zstandard>=0.22",
    "datasketch>=1.6",
    "setuptools",  # DeepSpeed imports torch's extension builder, which imports it
]
EXTRAS = {
    "anndata": ["anndata>=0.10"],
    "tokenizers": ["tokenizers>=0.19"],
    "plot": ["matplotlib>=3.8"],
    "onnx": ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"],
    "cuda": ["triton>=3.0; platform_system == 'Linux'"],
    "fla": ["flash-linear-attention==0.5.0; platform_system == 'Linux'"],
    "test": ["pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "ruff>=0.6", "mypy>=1.11", "types-PyYAML"],
    "bench": ["linear-attention-transformer==0.19.1", "transformers>=4.45", "pyfastx>=2.1"],
    "docs": ["mkdocs>=1.6"],
}

setup(
    name="protlat",
    version=VERSION,
    description="Linear-attention protein and document encoders at any sequence length, from raw files to answers",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=PACKAGES,
    package_dir=PARTS,
    package_data={"protlat": ["py.typed", "demo_data/*"], "protlat.configs": ["**/*.yaml"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["protlat=protlat.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Bio-Informatics",
    ],
)
