"""What the transformers entries share: tiny configurations, inputs, and how a model is built.

SpecAugment is off: it masks with numpy's generator, of which capture would keep one draw for ever.
LayerDrop needs more than a probability of 0: the code still branches on a random tensor in train
mode, which no capture can follow. ``_PinnedLayerDrop`` is the remedy open to a user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchvision_shim import import_torchvision

from zoo_models.entry import Inputs, ZooEntry, floats, inputs, integers, right_padding

VOCABULARY = 97
LENGTH = 10

IDS = integers(VOCABULARY, LENGTH, low=3)
MASK = right_padding(LENGTH, valid=8)
TARGET_IDS = integers(VOCABULARY, 6, low=3)

WORDS = inputs(input_ids=IDS)
LABELLED_WORDS = inputs(input_ids=IDS, attention_mask=MASK, labels=IDS)
PADDED_WORDS = inputs(input_ids=IDS, attention_mask=MASK)
TRANSLATION = inputs(input_ids=IDS, attention_mask=MASK, decoder_input_ids=TARGET_IDS)
SPECTROGRAM = inputs(input_features=floats(8, 40), decoder_input_ids=TARGET_IDS)
WAVEFORM = inputs(input_values=floats(400))
TRANSCRIBED = inputs(input_values=floats(400), labels=integers(20, 3, low=1))

_BLOCKS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_SPECIAL_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

TEXT = _BLOCKS | {"vocab_size": VOCABULARY, "max_position_embeddings": 32}
DECODER = TEXT | _SPECIAL_TOKENS | {"use_cache": False}
GROUPED_DECODER = DECODER | {"num_key_value_heads": 2, "head_dim": 8}
OPT = DECODER | {"ffn_dim": 64, "word_embed_proj_dim": 32, "layerdrop": 0.0}
VISION = _BLOCKS | {"image_size": 32, "patch_size": 8, "num_labels": 10}
SEQ2SEQ = _SPECIAL_TOKENS | {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "decoder_start_token_id": 1,
    "use_cache": False,
}
BART = SEQ2SEQ | {"max_position_embeddings": 32}
WHISPER = SEQ2SEQ | {
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 16,
    "apply_spec_augment": False,
}
SPEECH = _BLOCKS | {
    "vocab_size": 20,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}
DETECTOR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 5,
    "num_labels": 4,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}
BACKBONE = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "out_features": ["stage2"],
}
INFORMER = {
    "prediction_length": 4,
    "context_length": 8,
    "num_time_features": 1,
    "lags_sequence": [1, 2],
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "use_cache": False,
}
SERIES = inputs(
    past_values=floats(10),
    past_time_features=floats(10, 1),
    past_observed_mask=lambda batch: torch.ones(batch, 10),
    future_values=floats(4),
    future_time_features=floats(4, 1),
)


def configuration(name: str, **options: Any) -> Callable[[], Any]:
    """Of a part of a model, made when the model is."""

    def build() -> Any:
        import transformers

        return getattr(transformers, name)(**options)

    return build


def model(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A builder for transformers' class ``name`` from class ``config`` with these options."""

    def build() -> nn.Module:
        import_torchvision()
        import transformers

        given = {key: made() if callable(made) else made for key, made in options.items()}
        built: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**given))
        return built.train()

    return build


def entry(
    name: str, build: Callable[[], nn.Module], make_inputs: Callable[[int], Inputs]
) -> ZooEntry:
    """A zoo entry of the transformers family."""
    return ZooEntry(f"hf_{name}", build, make_inputs, family="transformers")
