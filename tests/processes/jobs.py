"""Models, data and settings that a reference run and the provider processes share."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest.provider.averaging.settings import Averaging

STEPS = 20
ROWS = 8


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.0),
            nn.Linear(128, 10),
        )

    def forward(self, images):
        return self.layers(images)


class TiedTransformer(nn.Module):
    def __init__(self, words=13, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        return self.head(self.encoder(self.embed(words))).transpose(1, 2)


class UNet(nn.Module):
    """Three levels; the skips go past one and past several stages."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 4), (4, 8), (8, 16))
        )
        self.up = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((24, 8), (12, 4)))
        self.out = nn.Conv2d(4, 10, 1)

    def forward(self, images):
        skips = []
        x = images
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2) if layer is not self.down[-1] else x
        skips.pop()
        for layer in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = torch.relu(layer(torch.cat([x, skips.pop()], 1)))
        return self.out(x).mean((2, 3))


class FrozenBackbone(nn.Module):
    """Nothing is trained before the last of the layers, where a new head sits."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(),
            nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(128, 10)

    def forward(self, images):
        return self.head(self.backbone(images).flatten(1))


MODELS = {"frozen": FrozenBackbone, "cnn": Cnn, "transformer": TiedTransformer, "unet": UNet}
OPTIMIZERS = {
    "plain": (torch.optim.SGD, {"lr": 0.05}),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    # A larger eps: the gradient of a key bias is zero but for rounding, which Adam would magnify.
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.05, "eps": 1e-4}),
}


def make_model(name):
    torch.manual_seed(7)
    return MODELS[name]()


def loader(name):
    generator = torch.Generator().manual_seed(1)
    rows = STEPS * ROWS - 3  # the last batch is smaller
    if name == "transformer":
        words = torch.randint(0, 13, (rows, 6), generator=generator)
        data = TensorDataset(words, words.roll(1, 1))
    else:
        images = torch.randn(rows, 1, 8, 8, generator=generator)
        data = TensorDataset(images, torch.randint(0, 10, (rows,), generator=generator))
    order = torch.Generator().manual_seed(2)
    return DataLoader(data, batch_size=ROWS, shuffle=True, generator=order)


def criterion(outputs, batch):
    return nn.functional.cross_entropy(outputs, batch[1])


def settings(job):
    """Keyword arguments of Node for this job."""
    factory, params = OPTIMIZERS[job["optimizer"]]
    found = {
        "optimizer": factory,
        "optimizer_params": params,
        "criterion": criterion,
        "update_frequency": job.get("update_frequency", 1),
        "schedule": job.get("schedule", "sync"),
        "micro_batches": job.get("micro_batches", 1),
        "transport": job.get("transport", "grpc"),
        "reduce_factor": job.get("reduce_factor"),
        "shard_data": job.get("shard_data", True),
        "averaging": Averaging(mode=job.get("averaging", "background"), connect_s=30),
    }
    if job.get("extras"):
        found |= {
            "clip_grad_norm": 0.5,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR,
            "lr_scheduler_params": {"step_size": 4, "gamma": 0.7},
            "lr_step_on_epoch_change": False,
        }
    return found


def train_alone(job):
    """The same on one machine, with plain PyTorch."""
    model, options = make_model(job["model"]), settings(job)
    optimizer = options["optimizer"](model.parameters(), **options["optimizer_params"])
    scheduler = None
    if "lr_scheduler" in options:
        scheduler = options["lr_scheduler"](optimizer, **options["lr_scheduler_params"])
    every = options["update_frequency"]

    def step(batches):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad /= batches
        if "clip_grad_norm" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()

    waiting = 0
    for batch in loader(job["model"]):
        criterion(model(batch[0]), batch).backward()
        waiting += 1
        if waiting == every:
            step(waiting)
            waiting = 0
    if waiting:
        step(waiting)
    return model
