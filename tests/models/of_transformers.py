"""Models of transformers: one line each, with what makes it small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from stranger import Stranger, seed
from torch import Tensor

Batch = Callable[[Any], dict[str, Any]]
"""The arguments of a call, for a configuration."""

_WORDS, _LENGTH = 2, 16


def language(config: Any) -> dict[str, Any]:
    """Words, each of which is to be predicted."""
    words = _words(config)
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.clone()}


def padded(config: Any) -> dict[str, Any]:
    """The same, of which the second sentence is shorter."""
    batch = language(config)
    batch["attention_mask"][1, -5:] = 0
    batch["labels"][1, -5:] = -100
    return batch


def sentences(config: Any) -> dict[str, Any]:
    """A class for each sentence."""
    return {"input_ids": _words(config), "labels": torch.tensor([0, 1])}


def tokens(config: Any) -> dict[str, Any]:
    """A class for each word."""
    return {"input_ids": _words(config), "labels": torch.randint(config.num_labels, (_WORDS, _LENGTH))}


def images(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(32), "labels": torch.tensor([0, 1])}


def masked_images(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(32)}


def segments(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(32), "labels": torch.randint(config.num_labels, (_WORDS, 32, 32))}


def boxes(config: Any) -> dict[str, Any]:
    one = {"class_labels": torch.tensor([0, 1]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.3, 0.4, 0.1, 0.1]])}
    return {"pixel_values": _pixels(64), "labels": [one, one]}


def images_and_words(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(32), "input_ids": _words(config.text_config), "return_loss": True}


def speech(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(_WORDS, 400), "labels": torch.randint(1, config.vocab_size, (_WORDS, 4))}


def spectra(config: Any) -> dict[str, Any]:
    features = torch.randn(_WORDS, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": features, "labels": _words(config)}


def _words(config: Any) -> Tensor:
    return torch.randint(5, config.vocab_size, (_WORDS, _LENGTH))


def _pixels(size: int) -> Tensor:
    return torch.randn(_WORDS, 3, size, size)


@dataclass(frozen=True)
class Row:
    """A model of transformers.

    Attributes:
        config, model: the names of their classes.
        batch: what it is called with.
        sizes: of the configuration.
        checkpoints: whether its layers run under torch.utils.checkpoint.
        dtype: of its parameters.
    """

    config: str
    model: str
    batch: Batch
    sizes: Mapping[str, Any]
    checkpoints: bool = False
    dtype: torch.dtype = torch.float32

    def build(self) -> Stranger:
        import transformers

        seed()
        config = getattr(transformers, self.config)(**self.sizes)
        model = getattr(transformers, self.model)(config).to(self.dtype).train()
        if self.checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        batch = self.batch(config)
        return Stranger(model, lambda: model(**batch).loss)


_USUAL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_LLAMA = {**_USUAL, "num_key_value_heads": 2}
_GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
}
_WHISPER = {
    **_BART,
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
}
_IMAGE = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_CLIP = {
    "text_config": {**_USUAL, "eos_token_id": 2, "bos_token_id": 1},
    "vision_config": _IMAGE,
    "projection_dim": 16,
}
_WAV2VEC2 = {
    **_USUAL,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2,
    "ctc_zero_infinity": True,
    "num_hidden_layers": 4,
    "layerdrop": 0.3,
}
_SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 32,
}
_CONVNEXT = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}


def _detr() -> dict[str, Any]:
    return {
        **_BART,
        "num_queries": 5,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "layer_type": "basic",
            "out_features": ["stage2"],
        },
    }


MODELS: Mapping[str, Row] = {
    "gpt2": Row("GPT2Config", "GPT2LMHeadModel", language, _GPT2),
    "gpt2 checkpointed": Row("GPT2Config", "GPT2LMHeadModel", language, _GPT2, checkpoints=True),
    "llama": Row("LlamaConfig", "LlamaForCausalLM", padded, _LLAMA),
    "llama bfloat16": Row("LlamaConfig", "LlamaForCausalLM", language, _LLAMA, dtype=torch.bfloat16),
    "mistral": Row("MistralConfig", "MistralForCausalLM", padded, {**_LLAMA, "sliding_window": 8}),
    "mixtral": Row("MixtralConfig", "MixtralForCausalLM", language, {**_LLAMA, "num_local_experts": 4}),
    "qwen2": Row("Qwen2Config", "Qwen2ForCausalLM", language, _LLAMA),
    "gemma": Row("GemmaConfig", "GemmaForCausalLM", language, {**_LLAMA, "head_dim": 8}),
    "phi": Row("PhiConfig", "PhiForCausalLM", language, _USUAL),
    "gpt_neox": Row("GPTNeoXConfig", "GPTNeoXForCausalLM", language, _USUAL),
    "falcon": Row("FalconConfig", "FalconForCausalLM", language, {**_USUAL, "alibi": False}),
    "bloom": Row(
        "BloomConfig", "BloomForCausalLM", padded, {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    ),
    "opt": Row("OPTConfig", "OPTForCausalLM", padded, {**_USUAL, "ffn_dim": 64, "word_embed_proj_dim": 16}),
    "mamba": Row("MambaConfig", "MambaForCausalLM", language, {**_USUAL, "state_size": 4, "time_step_rank": 4}),
    "bert": Row("BertConfig", "BertForMaskedLM", padded, _USUAL),
    "roberta": Row("RobertaConfig", "RobertaForSequenceClassification", sentences, _USUAL),
    "deberta": Row(
        "DebertaV2Config",
        "DebertaV2ForTokenClassification",
        tokens,
        {
            **_USUAL,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 8,
        },
    ),
    "electra": Row("ElectraConfig", "ElectraForPreTraining", tokens, {**_USUAL, "embedding_size": 16}),
    "albert": Row("AlbertConfig", "AlbertForMaskedLM", language, {**_USUAL, "embedding_size": 16}),
    "distilbert": Row(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        language,
        {
            "vocab_size": 99,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
        },
    ),
    "longformer": Row("LongformerConfig", "LongformerForMaskedLM", language, {**_USUAL, "attention_window": 4}),
    "t5": Row("T5Config", "T5ForConditionalGeneration", language, {**_T5, "decoder_start_token_id": 0}),
    "bart": Row("BartConfig", "BartForConditionalGeneration", language, _BART),
    "whisper": Row("WhisperConfig", "WhisperForConditionalGeneration", spectra, _WHISPER),
    "wav2vec2": Row("Wav2Vec2Config", "Wav2Vec2ForCTC", speech, _WAV2VEC2),
    "vit": Row("ViTConfig", "ViTForImageClassification", images, _IMAGE),
    "vit_mae": Row(
        "ViTMAEConfig",
        "ViTMAEForPreTraining",
        masked_images,
        {
            **_IMAGE,
            "decoder_hidden_size": 32,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 4,
            "decoder_intermediate_size": 64,
        },
    ),
    "clip": Row("CLIPConfig", "CLIPModel", images_and_words, _CLIP),
    "swin": Row("SwinConfig", "SwinForImageClassification", images, _SWIN),
    "convnext": Row("ConvNextConfig", "ConvNextForImageClassification", images, _CONVNEXT),
    "segformer": Row("SegformerConfig", "SegformerForSemanticSegmentation", segments, _SEGFORMER),
    "detr": Row("DetrConfig", "DetrForObjectDetection", boxes, _detr()),
}
