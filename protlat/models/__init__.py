"""Models: encoder, language models, presets, model folders."""

from protlat.models.config import DropoutConfig, ModelConfig
from protlat.models.encoder import Encoder
from protlat.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from protlat.models.hub import describe_model, model_hash, read_model_config, resolve_model_folder
from protlat.models.language_model import CausalLM, LanguageModel, MaskedLM, language_model_class
from protlat.models.padding import pad_sequences
from protlat.models.presets import load_preset, preset_names
from protlat.models.transformer import Transformer

__all__ = [
    "CausalLM",
    "DropoutConfig",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "LanguageModel",
    "MaskedLM",
    "ModelConfig",
    "Transformer",
    "describe_model",
    "language_model_class",
    "load_preset",
    "model_hash",
    "pad_sequences",
    "preset_names",
    "read_model_config",
    "resolve_model_folder",
]
