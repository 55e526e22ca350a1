"""Models of torch_geometric on a small random graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from stranger import Stranger, seed
from torch import Tensor, nn

_NODES, _EDGES, _FEATURES, _CLASSES = 24, 80, 16, 4


def _classifier(name: str, **more: Any) -> Callable[[], Stranger]:
    """A class for each node."""

    def build() -> Stranger:
        from torch_geometric.nn import models

        seed()
        model = getattr(models, name)(_FEATURES, 32, 2, _CLASSES, dropout=0.1, **more).train()
        features, edges, classes = _graph()
        return Stranger(model, lambda: nn.functional.cross_entropy(model(features, edges), classes))

    return build


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(_NODES, _FEATURES), torch.randint(_NODES, (2, _EDGES)), torch.randint(_CLASSES, (_NODES,))


def autoencoder() -> Stranger:
    """Predicts edges; its parts are called, never the model itself."""
    from torch_geometric.nn import VGAE, GCNConv

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.mean, self.spread = GCNConv(_FEATURES, 32), GCNConv(32, 8), GCNConv(32, 8)

        def forward(self, features: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.first(features, edges).relu()
            return self.mean(hidden, edges), self.spread(hidden, edges)

    seed()
    model = VGAE(Encoder()).train()
    features, edges, _ = _graph()

    def make_loss() -> Tensor:
        codes = model.encode(features, edges)
        return model.recon_loss(codes, edges) + model.kl_loss() / _NODES

    return Stranger(model, make_loss)


def graph_transformer() -> Stranger:
    """GPS: messages and attention side by side; a class for the whole graph."""
    from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(_FEATURES, 32)
            self.convs = nn.ModuleList([GPSConv(32, GINConv(nn.Linear(32, 32)), heads=4) for _ in range(2)])
            self.head = nn.Linear(32, _CLASSES)

        def forward(self, features: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
            hidden = self.embed(features)
            for conv in self.convs:
                hidden = conv(hidden, edges, batch)
            return self.head(global_mean_pool(hidden, batch))

    seed()
    model = Net().train()
    features, edges, _ = _graph()
    batch = torch.arange(_NODES) // (_NODES // 2)
    return Stranger(model, lambda: nn.functional.cross_entropy(model(features, edges, batch), torch.tensor([1, 2])))


def relations() -> Stranger:
    from torch_geometric.nn import RGCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = RGCNConv(_FEATURES, 32, 3, num_bases=2), RGCNConv(32, _CLASSES, 3)

        def forward(self, features: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
            return self.second(self.first(features, edges, kinds).relu(), edges, kinds)

    seed()
    model = Net().train()
    features, edges, classes = _graph()
    kinds = torch.randint(3, (_EDGES,))
    return Stranger(model, lambda: nn.functional.cross_entropy(model(features, edges, kinds), classes))


MODELS: Mapping[str, Callable[[], Stranger]] = {
    "gcn": _classifier("GCN"),
    "gat": _classifier("GAT", heads=4, v2=True),
    "sage": _classifier("GraphSAGE", norm="batch_norm"),
    "gin": _classifier("GIN"),
    "edge_cnn": _classifier("EdgeCNN"),
    "vgae": autoencoder,
    "gps": graph_transformer,
    "rgcn": relations,
}
