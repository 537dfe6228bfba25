"""Settings by hand, for architectures of transformers that no rule of the sweep makes small.

Each gives a model and what makes a batch for it, in a function with the name of the architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zoo_models.entry import Inputs

Made = tuple[nn.Module, Callable[[int], Inputs]]

BLOCKS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
CODER = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
}  # fmt: skip
TEXT = {
    **BLOCKS, "vocab_size": 99, "max_position_embeddings": 40, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
VISION = {**BLOCKS, "image_size": 32, "patch_size": 16}
SERIES = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2,
    **CODER, "d_model": 16, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
SPEECH = {
    **BLOCKS, "vocab_size": 20, "conv_dim": (16, 16), "conv_stride": (5, 4),
    "conv_kernel": (10, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "layerdrop": 0.0, "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}  # fmt: skip


def _words(rows: int, length: int = 8) -> torch.Tensor:
    return torch.randint(3, 99, (rows, length))


def _made(name: str, config: Any, **makers: Callable[[int], torch.Tensor]) -> Made:
    import transformers

    model = getattr(transformers, name)(config)
    return model, lambda rows: ((), {key: make(rows) for key, make in makers.items()})


def _picture(size: int = 32) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randn(rows, 3, size, size)


def _config(name: str, **settings: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**settings)


def _backbone(*stages: str) -> dict[str, Any]:
    config = _config(
        "ResNetConfig", embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1],
        layer_type="basic", out_features=list(stages),
    )  # fmt: skip
    return {
        "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False,
        "backbone_config": config, **CODER, "num_queries": 6,
    }  # fmt: skip


def owlvit() -> Made:
    config = _config("OwlViTConfig", text_config=TEXT, vision_config=VISION, projection_dim=32)
    return _made(
        "OwlViTForObjectDetection",
        config,
        pixel_values=_picture(),
        input_ids=lambda rows: _words(2 * rows),
    )


def groupvit() -> Made:
    vision = {
        **BLOCKS, "num_hidden_layers": 3, "depths": [1, 1, 1], "num_group_tokens": [8, 4, 0],
        "num_output_groups": [8, 4, 0], "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    config = _config(
        "GroupViTConfig", text_config=TEXT, vision_config=vision, projection_dim=16,
        projection_intermediate_dim=32,
    )  # fmt: skip
    return _made("GroupViTModel", config, pixel_values=_picture(), input_ids=_words)


def conditional_detr() -> Made:
    config = _config("ConditionalDetrConfig", **_backbone("stage4"))
    return _made("ConditionalDetrForObjectDetection", config, pixel_values=_picture(64))


def detr() -> Made:
    config = _config("DetrConfig", **_backbone("stage4"))
    return _made("DetrForObjectDetection", config, pixel_values=_picture(64))


def deformable_detr() -> Made:
    config = _config("DeformableDetrConfig", **_backbone("stage2", "stage3", "stage4"))
    return _made("DeformableDetrForObjectDetection", config, pixel_values=_picture(64))


def efficientnet() -> Made:
    config = _config(
        "EfficientNetConfig", width_coefficient=0.25, depth_coefficient=0.3, image_size=32,
        hidden_dim=320,
    )  # fmt: skip
    return _made("EfficientNetForImageClassification", config, pixel_values=_picture())


def perceiver() -> Made:
    config = _config(
        "PerceiverConfig", num_latents=8, d_latents=32, d_model=24, num_blocks=1,
        num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4,
        vocab_size=99, max_position_embeddings=16, qk_channels=16, v_channels=32,
    )  # fmt: skip
    return _made("PerceiverForMaskedLM", config, inputs=lambda rows: _words(rows, 16))


def pix2struct() -> Made:
    text = {
        "hidden_size": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "vocab_size": 99, "encoder_hidden_size": 32, "hidden_act": "relu",
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "patch_embed_hidden_size": 12, "d_ff": 48, "d_kv": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "seq_len": 32,
    }  # fmt: skip

    def patches(rows: int) -> torch.Tensor:
        places = torch.arange(18).view(1, 9, 2).expand(rows, -1, -1) % 8
        return torch.cat([places.float(), torch.randn(rows, 9, 12)], -1)

    return _made(
        "Pix2StructForConditionalGeneration",
        _config("Pix2StructConfig", text_config=text, vision_config=vision, pad_token_id=0),
        flattened_patches=patches,
        decoder_input_ids=lambda rows: _words(rows, 6),
    )


def _series(kind: str, **more: Any) -> Made:
    return _made(
        f"{kind}ForPrediction",
        _config(f"{kind}Config", **SERIES, **more),
        past_values=lambda rows: torch.randn(rows, 10),
        past_time_features=lambda rows: torch.randn(rows, 10, 2),
        past_observed_mask=lambda rows: torch.ones(rows, 10),
        future_values=lambda rows: torch.randn(rows, 4),
        future_time_features=lambda rows: torch.randn(rows, 4, 2),
    )


def time_series_transformer() -> Made:
    return _series("TimeSeriesTransformer")


def informer() -> Made:
    return _series("Informer")


def autoformer() -> Made:
    return _series("Autoformer", label_length=2, moving_average=3)


def patchtst() -> Made:
    config = _config(
        "PatchTSTConfig", num_input_channels=2, context_length=16, patch_length=4, patch_stride=4,
        d_model=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=16, prediction_length=4,
    )  # fmt: skip
    series = {"past_values": lambda rows: torch.randn(rows, 16, 2)}
    return _made("PatchTSTForPrediction", config, **series)


def big_bird() -> Made:
    """With full attention, to which its own first call would switch it for a short text."""
    config = _config("BigBirdConfig", **TEXT, attention_type="original_full", is_decoder=True)
    return _made("BigBirdForCausalLM", config, input_ids=_words)


def reformer() -> Made:
    config = _config(
        "ReformerConfig", attn_layers=["local", "lsh"], axial_pos_embds=False, hidden_size=32,
        feed_forward_size=48, num_attention_heads=2, attention_head_size=16, vocab_size=99,
        max_position_embeddings=64, local_attn_chunk_length=4, lsh_attn_chunk_length=4,
        num_buckets=2, is_decoder=True, hash_seed=0,
    )  # fmt: skip
    words = {"input_ids": lambda rows: _words(rows, 16)}
    return _made("ReformerModelWithLMHead", config, **words)


def sam() -> Made:
    places = {"image_size": 32, "patch_size": 8}
    vision = {
        **places, "hidden_size": 16, "output_channels": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "mlp_dim": 24, "window_size": 2, "global_attn_indexes": [1],
        "num_pos_feats": 8,
    }  # fmt: skip
    prompt = {**places, "hidden_size": 16, "mask_input_channels": 4, "num_point_embeddings": 4}
    decoder = {
        "hidden_size": 16, "mlp_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    }  # fmt: skip
    return _made(
        "SamModel",
        _config(
            "SamConfig",
            vision_config=vision,
            prompt_encoder_config=prompt,
            mask_decoder_config=decoder,
        ),
        pixel_values=_picture(),
        input_points=lambda rows: torch.rand(rows, 1, 2, 2) * 32,
    )


def speecht5() -> Made:
    config = _config(
        "SpeechT5Config", **{key: SPEECH[key] for key in SPEECH if key not in BLOCKS},
        **{key: CODER[key] for key in CODER if key != "d_model"}, hidden_size=32,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    )  # fmt: skip
    return _made(
        "SpeechT5ForSpeechToText",
        config,
        input_values=lambda rows: torch.randn(rows, 800),
        decoder_input_ids=lambda rows: torch.randint(3, 20, (rows, 5)),
    )


def blip_2() -> Made:
    former = {**BLOCKS, "encoder_hidden_size": 32, "vocab_size": 99}
    text = _config(
        "OPTConfig", vocab_size=99, hidden_size=32, num_hidden_layers=2, ffn_dim=48,
        num_attention_heads=4, max_position_embeddings=40, word_embed_proj_dim=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config = _config(
        "Blip2Config", vision_config=VISION, qformer_config=former, text_config=text,
        num_query_tokens=4, image_token_index=98,
    )  # fmt: skip

    def words(rows: int) -> torch.Tensor:
        ids = torch.randint(3, 90, (rows, 9))
        ids[:, :4] = 98
        return ids

    name = "Blip2ForConditionalGeneration"
    return _made(name, config, input_ids=words, pixel_values=_picture())


def qwen3_5_moe() -> Made:
    config = _config(
        "Qwen3_5MoeTextConfig", **TEXT, num_key_value_heads=2, head_dim=8, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    return _made("Qwen3_5MoeForCausalLM", config, input_ids=_words)


def musicgen_melody() -> Made:
    """Its decoder, as every use of it has one."""
    config = _config(
        "MusicgenMelodyDecoderConfig", vocab_size=64, num_hidden_layers=2, ffn_dim=48,
        num_attention_heads=4, hidden_size=32, num_codebooks=2, max_position_embeddings=32,
        pad_token_id=0, bos_token_id=0, layerdrop=0.0,
    )  # fmt: skip
    words = {"input_ids": lambda rows: torch.randint(0, 60, (2 * rows, 6))}
    return _made("MusicgenMelodyForCausalLM", config, **words)


def _pair(name: str, encoder: Any, **inputs: Callable[[int], torch.Tensor]) -> Made:
    decoder = _config("BertConfig", **TEXT, is_decoder=True, add_cross_attention=True)
    config = _config(
        f"{name}Config", encoder=encoder.to_dict(), decoder=decoder.to_dict(),
        decoder_start_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return _made(f"{name}Model", config, **inputs, decoder_input_ids=lambda rows: _words(rows, 6))


def vision_encoder_decoder() -> Made:
    encoder = _config("ViTConfig", **VISION)
    return _pair("VisionEncoderDecoder", encoder, pixel_values=_picture())


def speech_encoder_decoder() -> Made:
    encoder = _config("Wav2Vec2Config", **SPEECH)
    sound = {"input_values": lambda rows: torch.randn(rows, 800)}
    return _pair("SpeechEncoderDecoder", encoder, **sound)


BY_HAND: dict[str, Callable[[], Made]] = {
    made.__name__.replace("_", "-") if "encoder_decoder" in made.__name__ else made.__name__: made
    for made in (
        owlvit, groupvit, conditional_detr, detr, deformable_detr, efficientnet, perceiver,
        pix2struct, time_series_transformer, informer, autoformer, patchtst, big_bird, reformer,
        sam, speecht5, qwen3_5_moe, musicgen_melody, vision_encoder_decoder,
        speech_encoder_decoder,
    )
} | {"blip-2": blip_2}  # fmt: skip
"""By transformers' own name of the architecture."""
