"""Models of timm: one line each, with what makes it small."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stranger import Stranger, seed
from torch import nn

_STUB = Path(__file__).parent / "stub"  # of torchvision
_CLASSES = 10


@dataclass(frozen=True)
class Row:
    """A model of timm.

    Attributes:
        name: timm's, or of a class.
        pixels: of its images, in each direction.
        sizes: arguments of `timm.create_model`.
    """

    name: str
    pixels: int
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Stranger:
        if str(_STUB) not in sys.path:
            sys.path.append(str(_STUB))
        import timm

        seed()
        make = partial(timm.create_model, self.name) if timm.is_model(self.name) else getattr(timm.models, self.name)
        model = make(num_classes=_CLASSES, **self.sizes).train()
        pixels, classes = torch.randn(2, 3, self.pixels, self.pixels), torch.tensor([1, 7])
        return Stranger(model, lambda: nn.functional.cross_entropy(model(pixels), classes))


_SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}
_WIDTHS = {"depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)}

MODELS: Mapping[str, Row] = {
    "resnet": Row("test_resnet", 64),
    "resnet10t": Row("resnet10t", 32, {"channels": (8, 16, 24, 32), "stem_width": 8}),
    "resnext": Row("resnext50_32x4d", 32, {"layers": (1, 1, 1, 1), "cardinality": 4, "base_width": 4}),
    "convnext": Row("convnext_atto", 64, _WIDTHS),
    "convnextv2": Row("convnextv2_atto", 64, _WIDTHS),
    "vit": Row("test_vit", 32, {"img_size": 32}),
    "beit": Row("beit_base_patch16_224", 32, {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "swin": Row("swin_tiny_patch4_window7_224", 32, _SWIN),
    "efficientnet": Row("test_efficientnet", 64),
    "mobilenetv3": Row("mobilenetv3_small_050", 64),
    "mixer": Row("MlpMixer", 32, {"img_size": 32, "embed_dim": 32, "num_blocks": 2}),
    "densenet": Row("densenet121", 64, {"growth_rate": 8, "block_config": (2, 2, 2, 2)}),
    "regnet": Row("regnetx_002", 64),
    "nfnet": Row("test_nfnet", 64),
    "mambaout": Row("test_mambaout", 64),
    "byobnet": Row("test_byobnet", 64),
    "levit": Row(
        "levit_128s",
        64,
        {
            "img_size": 64,
            "embed_dim": (16, 24, 32),
            "key_dim": 8,
            "num_heads": (2, 3, 4),
            "depth": (1, 1, 1),
        },
    ),
}
