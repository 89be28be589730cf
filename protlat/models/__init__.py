"""Models: encoder, masked-language model, presets, model folders."""

from protlat.models.config import DropoutConfig, ModelConfig
from protlat.models.encoder import Encoder
from protlat.models.hub import describe_model, model_hash, read_model_config, resolve_model_folder
from protlat.models.masked_lm import MaskedLM
from protlat.models.presets import load_preset, preset_names

__all__ = [
    "DropoutConfig",
    "Encoder",
    "MaskedLM",
    "ModelConfig",
    "describe_model",
    "load_preset",
    "model_hash",
    "preset_names",
    "read_model_config",
    "resolve_model_folder",
]
