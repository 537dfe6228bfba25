"""Models built by torchvision: at full depth where that is cheap, else from small settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision_shim import import_torchvision

from zoo_models.entry import ZooEntry, floats, inputs

_CLASSES = 10


def _named(name: str, **options: Any) -> Callable[[], nn.Module]:
    """One of torchvision's ready-made architectures, untrained."""

    def build() -> nn.Module:
        return import_torchvision().models.get_model(
            name, weights=None, num_classes=_CLASSES, **options
        )

    return build


def densenet() -> nn.Module:
    return import_torchvision().models.DenseNet(
        growth_rate=8,
        block_config=(2, 3, 2),
        num_init_features=16,
        drop_rate=0.1,
        num_classes=_CLASSES,
    )


def googlenet() -> nn.Module:
    """Two auxiliary heads in train mode, none in eval mode."""
    return import_torchvision().models.GoogLeNet(
        num_classes=_CLASSES, aux_logits=True, init_weights=False
    )


def efficientnet() -> nn.Module:
    """Squeeze-and-excitation, SiLU and stochastic depth in a few narrow blocks."""
    module = import_torchvision().models.efficientnet
    block = partial(module.MBConvConfig, width_mult=1.0, depth_mult=1.0)
    settings = [
        block(1, 3, 1, 8, 8, 1),
        block(4, 3, 2, 8, 16, 2),
        block(4, 5, 2, 16, 24, 2),
    ]
    return module.EfficientNet(
        settings, dropout=0.2, stochastic_depth_prob=0.2, num_classes=_CLASSES, last_channel=64
    )


def convnext() -> nn.Module:
    module = import_torchvision().models.convnext
    settings = [
        module.CNBlockConfig(16, 32, 2),
        module.CNBlockConfig(32, 48, 2),
        module.CNBlockConfig(48, None, 2),
    ]
    return module.ConvNeXt(
        settings, stochastic_depth_prob=0.1, layer_scale=0.1, num_classes=_CLASSES
    )


def swin() -> nn.Module:
    return import_torchvision().models.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        dropout=0.1,
        attention_dropout=0.1,
        stochastic_depth_prob=0.1,
        num_classes=_CLASSES,
    )


def vit() -> nn.Module:
    model = import_torchvision().models.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=3,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        dropout=0.1,
        attention_dropout=0.1,
        num_classes=_CLASSES,
    )
    # torchvision starts the head at zero, which would hide every gradient behind it.
    nn.init.normal_(model.heads.head.weight, std=0.1)
    return model


def maxvit() -> nn.Module:
    return import_torchvision().models.MaxVit(
        input_size=(32, 32),
        stem_channels=8,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.1,
        num_classes=_CLASSES,
    )


def vgg11() -> nn.Module:
    """VGG-11 with its 120 million classifier weights replaced before they are allocated."""
    module = import_torchvision().models.vgg
    features = module.make_layers(module.cfgs["A"], batch_norm=False)
    with torch.device("meta"):
        model = module.VGG(features, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier = nn.Sequential(
        nn.Linear(512, 64), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(64, _CLASSES)
    )
    return model


def segmentation() -> nn.Module:
    """FCN over a short bottleneck ResNet: an ordered dict with an auxiliary output."""
    torchvision = import_torchvision()
    resnet = torchvision.models.resnet
    backbone = torchvision.models._utils.IntermediateLayerGetter(
        resnet.ResNet(
            resnet.Bottleneck,
            [1, 1, 1, 1],
            width_per_group=16,
            replace_stride_with_dilation=[False, True, True],
        ),
        return_layers={"layer4": "out", "layer3": "aux"},
    )
    fcn = torchvision.models.segmentation.fcn
    return fcn.FCN(backbone, fcn.FCNHead(2048, 5), fcn.FCNHead(1024, 5))


def _entry(
    name: str, build: Callable[[], nn.Module], size: int, *, heavy: bool = False
) -> ZooEntry:
    images = inputs(floats(3, size, size))
    return ZooEntry(f"tv_{name}", build, images, family="torchvision", heavy=heavy)


# 48 pixels keep the last feature map above 1x1, so that BatchNorm can train on a batch of one. The
# auxiliary head of Inception needs 299.
ENTRIES = (
    _entry("resnet50", _named("resnet50"), 48),
    _entry("inception_v3", _named("inception_v3", init_weights=False), 299, heavy=True),
    _entry("googlenet", googlenet, 48),
    _entry("densenet", densenet, 32),
    _entry("mobilenet_v2", _named("mobilenet_v2"), 48),
    _entry("mobilenet_v3", _named("mobilenet_v3_small"), 48),
    _entry("efficientnet", efficientnet, 32),
    _entry("convnext", convnext, 32),
    _entry("swin", swin, 32),
    _entry("vit", vit, 32),
    _entry("maxvit", maxvit, 32),
    _entry("squeezenet", _named("squeezenet1_1"), 32),
    _entry("shufflenet", _named("shufflenet_v2_x0_5"), 48),
    _entry("regnet", _named("regnet_y_400mf"), 48),
    _entry("mnasnet", _named("mnasnet0_5"), 48),
    _entry("vgg11", vgg11, 32),
    _entry("fcn_segmentation", segmentation, 32),
)
