"""Models of diffusers, and the losses they are trained with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from stranger import Stranger, seed
from torch import Tensor, nn

_IMAGES, _SIZE = 2, 16


def _denoiser(name: str, channels: int, sizes: Mapping[str, Any], **given: Any) -> Stranger:
    """Predicts the noise in a picture."""
    import diffusers

    seed()
    model = getattr(diffusers, name)(**sizes).train()
    noisy, noise = torch.randn(2, _IMAGES, channels, _SIZE, _SIZE)
    times = torch.tensor([3, 700])
    return Stranger(
        model, lambda: nn.functional.mse_loss(_half(model(noisy, timestep=times, **given).sample, channels), noise)
    )


def _half(out: Tensor, channels: int) -> Tensor:
    """Leave out the variances that some models predict as well."""
    return out[:, :channels]


_UNET = {
    "sample_size": _SIZE,
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 4,
}


def unet() -> Stranger:
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return _denoiser("UNet2DModel", 3, {**_UNET, **blocks, "attention_head_dim": 8})


def unet_conditioned() -> Stranger:
    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    more = {"in_channels": 4, "out_channels": 4, "cross_attention_dim": 24, "attention_head_dim": 4}
    seed()
    return _denoiser(
        "UNet2DConditionModel", 4, {**_UNET, **blocks, **more}, encoder_hidden_states=torch.randn(_IMAGES, 7, 24)
    )


_TRANSFORMER = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "sample_size": _SIZE}


def dit() -> Stranger:
    sizes = {**_TRANSFORMER, "in_channels": 4, "patch_size": 4, "norm_num_groups": 4, "num_embeds_ada_norm": 1000}
    return _denoiser("DiTTransformer2DModel", 4, sizes, class_labels=torch.tensor([1, 5]))


def pixart() -> Stranger:
    sizes = {
        **_TRANSFORMER,
        "in_channels": 4,
        "out_channels": 8,
        "patch_size": 4,
        "norm_num_groups": 4,
        "cross_attention_dim": 32,
        "caption_channels": 24,
        "use_additional_conditions": False,
    }
    seed()
    return _denoiser(
        "PixArtTransformer2DModel",
        4,
        sizes,
        encoder_hidden_states=torch.randn(_IMAGES, 7, 24),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None},
    )


def sd3() -> Stranger:
    sizes = {
        **_TRANSFORMER,
        "in_channels": 4,
        "out_channels": 4,
        "patch_size": 2,
        "joint_attention_dim": 24,
        "caption_projection_dim": 32,
        "pooled_projection_dim": 16,
        "pos_embed_max_size": 16,
    }
    seed()
    return _denoiser(
        "SD3Transformer2DModel",
        4,
        sizes,
        encoder_hidden_states=torch.randn(_IMAGES, 7, 24),
        pooled_projections=torch.randn(_IMAGES, 16),
    )


def flux() -> Stranger:
    import diffusers

    seed()
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    ).train()
    noisy, noise, words = *torch.randn(2, _IMAGES, 16, 4), torch.randn(_IMAGES, 7, 24)
    given = {
        "encoder_hidden_states": words,
        "pooled_projections": torch.randn(_IMAGES, 16),
        "timestep": torch.tensor([0.1, 0.7]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(7, 3),
    }
    return Stranger(model, lambda: nn.functional.mse_loss(model(noisy, **given).sample, noise))


_CODES = {
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
}


def autoencoder() -> Stranger:
    """Its parts are called, never the model itself."""
    import diffusers

    seed()
    model = diffusers.AutoencoderKL(**_CODES, sample_size=_SIZE).train()
    images = torch.randn(_IMAGES, 3, _SIZE, _SIZE)

    def make_loss() -> Tensor:
        codes = model.encode(images).latent_dist
        return nn.functional.mse_loss(model.decode(codes.sample()).sample, images) + 0.1 * codes.kl().mean()

    return Stranger(model, make_loss)


def quantized() -> Stranger:
    """Codes from a book, with a straight-through gradient."""
    import diffusers

    seed()
    model = diffusers.VQModel(**_CODES, num_vq_embeddings=16).train()
    images = torch.randn(_IMAGES, 3, _SIZE, _SIZE)

    def make_loss() -> Tensor:
        codes, commitment, _ = model.quantize(model.encode(images).latents)
        out = model.decoder(model.post_quant_conv(codes))
        return nn.functional.mse_loss(out, images) + commitment

    return Stranger(model, make_loss)


MODELS: Mapping[str, Callable[[], Stranger]] = {
    "unet": unet,
    "unet conditioned": unet_conditioned,
    "dit": dit,
    "pixart": pixart,
    "sd3": sd3,
    "flux": flux,
    "autoencoder": autoencoder,
    "vq": quantized,
}
