"""Image and speech models built by transformers, and one with a text tower beside the image."""

from __future__ import annotations

from zoo_models import huggingface as hf
from zoo_models.entry import ZooEntry, floats, inputs

_IMAGE = floats(3, 32, 32)
_PIXELS = inputs(pixel_values=_IMAGE)

_IMAGES: tuple[ZooEntry, ...] = (
    hf.entry("vit", hf.model("ViTForImageClassification", "ViTConfig", **hf.VISION), _PIXELS),
    hf.entry(
        "deit",
        hf.model("DeiTForImageClassificationWithTeacher", "DeiTConfig", **hf.VISION),
        _PIXELS,
    ),
    hf.entry(
        "beit",
        hf.model(
            "BeitForImageClassification",
            "BeitConfig",
            use_relative_position_bias=True,
            **hf.VISION,
        ),
        _PIXELS,
    ),
    hf.entry(
        "swin",
        hf.model(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=4,
            num_labels=10,
        ),
        _PIXELS,
    ),
    hf.entry(
        "segformer",
        hf.model(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            num_encoder_blocks=3,
            depths=[1, 1, 1],
            hidden_sizes=[8, 16, 24],
            sr_ratios=[4, 2, 1],
            num_attention_heads=[1, 2, 4],
            patch_sizes=[7, 3, 3],
            strides=[4, 2, 2],
            mlp_ratios=[2, 2, 2],
            decoder_hidden_size=16,
            num_labels=5,
        ),
        _PIXELS,
    ),
    hf.entry(
        "clip",
        hf.model(
            "CLIPModel",
            "CLIPConfig",
            text_config=hf.DECODER | {"projection_dim": 16},
            vision_config=hf.VISION | {"projection_dim": 16},
            projection_dim=16,
        ),
        inputs(input_ids=hf.IDS, attention_mask=hf.MASK, pixel_values=_IMAGE),
    ),
)

_DETECTION: tuple[ZooEntry, ...] = (
    hf.entry(
        "detr",
        hf.model(
            "DetrForObjectDetection",
            "DetrConfig",
            **hf.DETECTOR,
            backbone_config=hf.configuration("ResNetConfig", **hf.BACKBONE),
        ),
        _PIXELS,
    ),
)

_SPEECH: tuple[ZooEntry, ...] = (
    hf.entry(
        "wav2vec2",
        hf.model("Wav2Vec2ForCTC", "Wav2Vec2Config", **hf.SPEECH),
        hf.WAVEFORM,
    ),
    hf.entry(
        "wav2vec2_labelled",  # its loss is that of a sequence which is shorter than its frames
        hf.model("Wav2Vec2ForCTC", "Wav2Vec2Config", **hf.SPEECH),
        hf.TRANSCRIBED,
    ),
    hf.entry(
        "hubert",
        hf.model(
            "HubertForSequenceClassification",
            "HubertConfig",
            num_labels=4,
            classifier_proj_size=16,
            **hf.SPEECH,
        ),
        hf.WAVEFORM,
    ),
    hf.entry(
        "whisper",
        hf.model("WhisperForConditionalGeneration", "WhisperConfig", **hf.WHISPER),
        hf.SPECTROGRAM,
    ),
    hf.entry(
        "encodec",
        hf.model(
            "EncodecModel",
            "EncodecConfig",
            num_filters=2,
            hidden_size=8,
            codebook_size=8,
            upsampling_ratios=[4, 2],
            target_bandwidths=[36.0],
            num_lstm_layers=1,
        ),
        inputs(input_values=floats(1, 64)),
    ),
    hf.entry(
        "informer",
        hf.model("InformerForPrediction", "InformerConfig", **hf.INFORMER),
        hf.SERIES,
    ),
)

ENTRIES = _IMAGES + _DETECTION + _SPEECH
