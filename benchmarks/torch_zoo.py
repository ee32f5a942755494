"""Networks of torchvision, transformers and a few written here, with random weights, as PyTorch modules.

Batch normalisations have the statistics of a random batch, so that values keep their size from layer to layer.
Papers: O. Ronneberger et al., U-Net, arXiv:1505.04597; L.-C. Chen et al., DeepLabv3, arXiv:1706.05587; J. Redmon and
A. Farhadi, YOLOv3, arXiv:1804.02767; W. Dai et al., M5, arXiv:1610.00087; W. Shi et al., ESPCN, arXiv:1609.05158;
S. Hochreiter and J. Schmidhuber, LSTM, 1997.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn


def _block(cin: int, cout: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout), nn.SiLU()
    )


class UNet(nn.Module):
    """Two steps down and up again by transposed convolutions, with connections across."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            self._pair(cin, cout) for cin, cout in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in (2 * width, width))
        self.joined = nn.ModuleList(self._pair(2 * size, size) for size in (2 * width, width))
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(cin: int, cout: int) -> nn.Sequential:
        layers = []
        for have in (cin, cout):
            layers += [nn.Conv2d(have, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        around = []
        for level, layer in enumerate(self.down):
            x = layer(nn.functional.max_pool2d(x, 2) if level else x)
            around.append(x)
        for up, joined, other in zip(self.up, self.joined, reversed(around[:-1]), strict=True):
            x = joined(torch.cat([up(x), other], 1))
        return self.last(x)


class DeepLab(nn.Module):
    """A small backbone, torchvision's head with its pyramid of dilated convolutions, and bilinear upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            _block(3, 16, stride=2), _block(16, 32, stride=2), _block(32, 64, stride=2)
        )
        self.head = torchvision.models.segmentation.deeplabv3.DeepLabHead(64, 8, (2, 4, 6))

    def forward(self, x: Tensor) -> Tensor:
        classes = self.head(self.backbone(x))
        return nn.functional.interpolate(classes, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Detector(nn.Module):
    """Two scales of a detector, with a fast pyramid pooling and an upsampled connection, up to its decode."""

    def __init__(self, anchors: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, stride=2), _block(16, 32, stride=2), _block(32, 64, stride=2))
        self.deep = _block(64, 128, stride=2)
        self.reduce, self.spread = _block(128, 64, 1), _block(256, 128, 1)
        self.narrow, self.joined = _block(128, 64, 1), _block(128, 64)
        self.heads = nn.ModuleList(nn.Conv2d(size, anchors * (5 + classes), 1) for size in (64, 128))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shallow = self.stem(x)
        pooled = [self.reduce(self.deep(shallow))]
        for _ in range(3):
            pooled.append(nn.functional.max_pool2d(pooled[-1], 5, 1, 2))
        deep = self.spread(torch.cat(pooled, 1))
        upper = nn.functional.interpolate(self.narrow(deep), scale_factor=2.0, mode="nearest")
        wide = self.joined(torch.cat([upper, shallow], 1))
        return self.heads[0](wide).sigmoid(), self.heads[1](deep).sigmoid()


class Keywords(nn.Module):
    """One-dimensional convolutions on a waveform."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for cin, cout, kernel, stride in ((1, 32, 80, 4), (32, 32, 3, 1), (32, 64, 3, 1), (64, 64, 3, 1)):
            layers += [nn.Conv1d(cin, cout, kernel, stride), nn.BatchNorm1d(cout), nn.ReLU(), nn.MaxPool1d(4)]
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(64, 35)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.log_softmax(self.last(self.layers(x).mean(2)), 1)


class SuperResolution(nn.Module):
    """Three times the pixels in both directions, which are shuffled from channels at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh(),
            nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Lstm(nn.Module):
    """A cell of LSTM written out for each of some steps, and a classifier of the last state."""

    def __init__(self, inputs: int = 40, state: int = 64, steps: int = 8) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + state, 4 * state)
        self.last, self.state, self.steps = nn.Linear(state, 12), state, steps

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(x.shape[0], self.state)
        cell = x.new_zeros(x.shape[0], self.state)
        for step in range(self.steps):
            gates = self.gates(torch.cat([x[:, step], hidden], 1))
            entry, keep, new, out = gates.chunk(4, 1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(entry) * torch.tanh(new)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
        return self.last(hidden)


class Bert(nn.Module):
    """Layers of transformers' encoder after the embeddings."""

    def __init__(self, layers: int = 2, width: int = 128) -> None:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertEncoder

        super().__init__()
        config = BertConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=4 * width,
            attn_implementation="eager",
        )  # fmt: skip
        self.encoder = BertEncoder(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x).last_hidden_state


def _vision(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision.models, name)(weights=None, **options)


IMAGE = (1, 3, 96, 96)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (_vision("resnet18"), IMAGE),
    "mobilenet_v2": (_vision("mobilenet_v2"), IMAGE),
    "mobilenet_v3_small": (_vision("mobilenet_v3_small"), IMAGE),
    "efficientnet_b0": (_vision("efficientnet_b0"), IMAGE),
    "shufflenet_v2": (_vision("shufflenet_v2_x0_5"), IMAGE),
    "regnet": (_vision("regnet_y_400mf"), IMAGE),
    "squeezenet": (_vision("squeezenet1_1"), IMAGE),
    "densenet121": (_vision("densenet121"), IMAGE),
    "convnext_tiny": (_vision("convnext_tiny"), IMAGE),
    "vit_b_16": (_vision("vit_b_16", image_size=96), IMAGE),
    "swin_t": (_vision("swin_t"), IMAGE),
    "unet": (UNet, (1, 3, 64, 64)),
    "deeplab": (DeepLab, IMAGE),
    "detector": (Detector, IMAGE),
    "keywords": (Keywords, (1, 1, 8000)),
    "super_resolution": (SuperResolution, (1, 1, 64, 64)),
    "lstm": (Lstm, (1, 8, 40)),
    "bert": (Bert, (1, 64, 128)),
}
"""Constructor of each network, and the shape of its input."""


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network in inference mode, with fixed random weights, and the shape of its input."""
    torch.manual_seed(1)
    make, shape = NETWORKS[name]
    module = make()
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    layers = [layer for layer in module.modules() if isinstance(layer, norms)]
    module.eval()
    for layer in layers:
        layer.train()
        layer.momentum = None  # a plain average of the batches
        layer.reset_running_stats()
    if layers:
        with torch.no_grad():
            module(torch.randn(8, *shape[1:]))
    return module.eval(), shape
