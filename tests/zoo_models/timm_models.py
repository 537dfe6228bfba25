"""Models built by timm from small settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision_shim import import_torchvision

from zoo_models.entry import ZooEntry, floats, inputs

_CLASSES = 10


def _named(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import_torchvision()
        import timm

        return timm.create_model(name, pretrained=False, num_classes=_CLASSES, **options)

    return build


def mixer() -> nn.Module:
    import_torchvision()
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(
        num_classes=_CLASSES,
        img_size=32,
        patch_size=8,
        num_blocks=3,
        embed_dim=48,
        drop_rate=0.1,
        proj_drop_rate=0.1,
        drop_path_rate=0.1,
    )
    # timm starts the head at zero, which would hide every gradient behind it.
    nn.init.normal_(model.get_parameter("head.weight"), std=0.1)
    return model


def convmixer() -> nn.Module:
    import_torchvision()
    from timm.models.convmixer import ConvMixer

    return ConvMixer(dim=32, depth=3, kernel_size=3, patch_size=4, num_classes=_CLASSES)


def _entry(name: str, build: Callable[[], nn.Module], size: int = 32) -> ZooEntry:
    return ZooEntry(f"timm_{name}", build, inputs(floats(3, size, size)), family="timm")


ENTRIES = (
    # zero_init_last would start every residual branch at zero and hide its gradients.
    _entry(
        "resnet",
        _named("resnet18", drop_rate=0.1, drop_path_rate=0.1, zero_init_last=False),
        size=48,
    ),
    _entry(
        "vit",
        _named(
            "vit_tiny_patch16_224",
            img_size=32,
            patch_size=8,
            embed_dim=48,
            depth=3,
            num_heads=4,
            drop_path_rate=0.1,
            proj_drop_rate=0.1,
            attn_drop_rate=0.1,
        ),
    ),
    _entry("mixer", mixer),
    _entry("convmixer", convmixer),
    _entry("efficientnet", _named("test_efficientnet", drop_rate=0.1, drop_path_rate=0.1), size=48),
    _entry("convnext", _named("test_convnext")),
)
