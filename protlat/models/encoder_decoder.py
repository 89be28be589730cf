"""An encoder whose output a decoder reads as context: sequence to sequence."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pydantic import model_validator
from torch import nn
from typing_extensions import Self

from protlat import __version__
from protlat.alphabet import Alphabet
from protlat.config import Config
from protlat.errors import CheckpointError, ConfigError
from protlat.files import atomic_path, write_json, write_text
from protlat.models.config import ModelConfig
from protlat.models.encoder import Encoder
from protlat.models.hub import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, check_shape, read_weights, resolve_model_folder
from protlat.models.language_model import language_model_class
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments, pack, unpack

_FORMAT = 1


class EncoderDecoderConfig(Config):
    """An encoder and a decoder that reads it."""

    encoder: ModelConfig
    """Settings of the model that reads the source."""
    decoder: ModelConfig
    """Settings of the model that writes the target; with `context`, and usually causal."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.decoder.context is None:
            raise ValueError("decoder.context: a decoder needs context attention; set its kind and n_heads")
        if self.encoder.context is not None:
            raise ValueError("encoder.context: the encoder reads the source alone; set null")
        width = self.decoder.context.width or self.decoder.d_model
        if width != self.encoder.d_model:
            raise ValueError(
                f"decoder.context.width is {width}, but the encoder's vectors have {self.encoder.d_model} channels; set "
                f"decoder.context.width={self.encoder.d_model}"
            )
        return self


class EncoderDecoder(nn.Module):
    """Source tokens and target tokens in, logits of target tokens out.

    Parameters
    ----------
    config : EncoderDecoderConfig
    alphabet : Alphabet
        Of the source.
    target_alphabet : Alphabet or None
        Of the target; None: that of the source.

    Examples
    --------
    >>> import torch
    >>> from protlat import PROTEIN, Segments
    >>> from protlat.models import EncoderDecoder, EncoderDecoderConfig
    >>> size = {"d_model": 16, "n_layers": 2, "head_dim": 8}
    >>> decoder = {**size, "causal": True, "context": {"kind": "efficient", "n_heads": 2}}
    >>> model = EncoderDecoder(EncoderDecoderConfig.parse({"encoder": size, "decoder": decoder}), PROTEIN)
    >>> source, target = torch.randint(4, 24, (9,)), torch.randint(4, 24, (5,))
    >>> model(source, Segments([6, 3]), target, Segments([1, 4])).shape
    torch.Size([5, 33])
    """

    def __init__(
        self, config: EncoderDecoderConfig, alphabet: Alphabet, target_alphabet: Alphabet | None = None
    ) -> None:
        super().__init__()
        self.config, self.alphabet, self.target_alphabet = config, alphabet, target_alphabet or alphabet
        self.encoder = Encoder(config.encoder, alphabet)
        self.decoder = language_model_class(config.decoder)(config.decoder, self.target_alphabet)

    def encode(self, source: torch.Tensor, source_segments: Segments) -> torch.Tensor:
        """Vectors of the source, (T', E)."""
        return self.encoder(source, source_segments)[self.config.encoder.n_layers]

    def forward(
        self,
        source: torch.Tensor,
        source_segments: Segments,
        target: torch.Tensor,
        target_segments: Segments,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits over the target alphabet.

        Parameters
        ----------
        source : torch.Tensor, shape (T',), int64
        source_segments : Segments
        target : torch.Tensor, shape (T,), int64
        target_segments : Segments
            As many sequences as the source has: target s reads source s.
        at : torch.Tensor, shape (P,), int64, or None
            Packed target positions to predict at; None: all.

        Returns
        -------
        torch.Tensor, shape (P, V) or (T, V), float32
            Of the next token where the decoder is causal, of the token at that position where it is not.

        Raises
        ------
        SequenceError
            Source and target differ in their number of sequences, or one is longer than its model can read.
        """
        context = self.encode(source, source_segments)
        return self.decoder(target, target_segments, at, context=context, context_segments=source_segments)

    def forward_padded(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        context_mask: torch.Tensor | None = None,
        input_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of a padded batch.

        Parameters
        ----------
        source : torch.Tensor, shape (B, L'), int64
        target : torch.Tensor, shape (B, L), int64
        context_mask : torch.Tensor, shape (B, L'), bool, or None
            True = token of the source; padding follows the tokens of each row and is never read. None: all are tokens.
        input_mask : torch.Tensor, shape (B, L), bool, or None
            The same of the target.

        Returns
        -------
        torch.Tensor, shape (B, L, V)
            Zero in the padding.
        """
        context_mask = torch.ones_like(source, dtype=torch.bool) if context_mask is None else context_mask
        input_mask = torch.ones_like(target, dtype=torch.bool) if input_mask is None else input_mask
        logits = self(
            pack(source, context_mask), Segments.from_mask(context_mask),
            pack(target, input_mask), Segments.from_mask(input_mask),
        )  # fmt: skip
        return unpack(logits, input_mask)

    def start(self, source: torch.Tensor, source_segments: Segments) -> RecurrentState:
        """The state from which a causal decoder writes a target for each source.

        Parameters
        ----------
        source : torch.Tensor, shape (T',), int64
        source_segments : Segments

        Returns
        -------
        RecurrentState
            For `step`, or for calls of ``self.decoder`` as of any causal model. It holds what the decoder needs of
            the sources; their vectors are not kept.

        Raises
        ------
        ConfigError
            The decoder is not causal.
        """
        if not self.config.decoder.causal:
            raise ConfigError("this decoder sees both sides, so it cannot write a target; train one with causal: true")
        return self.decoder.encoder.remember(self.encode(source, source_segments), source_segments)

    def step(
        self, target: torch.Tensor, target_segments: Segments, state: RecurrentState
    ) -> tuple[torch.Tensor, RecurrentState]:
        """Logits of the tokens after these, and the state behind them.

        Parameters
        ----------
        target : torch.Tensor, shape (T,), int64
            Some more tokens of every target.
        target_segments : Segments
            With the number of tokens read before as offsets.
        state : RecurrentState
            What `start` or the last `step` returned.

        Returns
        -------
        logits : torch.Tensor, shape (T, V), float32
        state : RecurrentState
        """
        return self.decoder(target, target_segments, state=state), state.next()

    def n_parameters(self) -> int:
        """Number of trained values."""
        return sum(p.numel() for p in self.parameters())

    def save_pretrained(self, folder: str | Path, card: str | None = None) -> None:
        """Write weights, config and, when given, a model card (Markdown) to a folder, each file atomically."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        with atomic_path(folder / WEIGHTS_FILE) as temporary:
            save_file(weights, temporary, metadata={"format": "pt"})
        facts = {
            "format": _FORMAT,
            "class": type(self).__name__,
            "protlat": __version__,
            "alphabet": self.alphabet.to_plain(),
            "target_alphabet": self.target_alphabet.to_plain(),
            "encoder_decoder": self.config.to_plain(),
        }
        write_json(folder / CONFIG_FILE, facts)
        if card is not None:
            write_text(folder / CARD_FILE, card)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Load a folder that `save_pretrained` wrote, in evaluation mode.

        Parameters
        ----------
        folder : path
        device : torch.device or str
        dtype : torch.dtype
            Precision of the weights in memory.

        Raises
        ------
        CheckpointError
            The folder is not an encoder-decoder, or is damaged.
        """
        folder = resolve_model_folder(folder)
        model = cls(*_read_config(folder / CONFIG_FILE))
        weights = read_weights(folder)
        expected = model.state_dict()
        if weights.keys() != expected.keys():
            odd = sorted(weights.keys() ^ expected.keys())
            raise CheckpointError(f"{folder / WEIGHTS_FILE}: missing or unknown weights: {', '.join(odd[:5])}")
        for name, value in expected.items():
            check_shape(folder, name, weights[name], value)
        model.to(dtype).load_state_dict(weights)
        return model.to(device).eval()


def _read_config(path: Path) -> tuple[EncoderDecoderConfig, Alphabet, Alphabet]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] > _FORMAT:
            raise CheckpointError(
                f"{path}: format {values['format']}, this protlat reads up to {_FORMAT}; update protlat"
            )
        if "encoder_decoder" not in values:
            raise CheckpointError(f"{path}: holds {values['class']}, not an EncoderDecoder; load it with that class")
        config = EncoderDecoderConfig.parse(values["encoder_decoder"], str(path))
        return config, Alphabet.from_plain(values["alphabet"]), Alphabet.from_plain(values["target_alphabet"])
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a model config: {type(error).__name__} at {error}") from None
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
