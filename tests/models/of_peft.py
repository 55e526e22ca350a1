"""Models of transformers with what peft adds to them: most parameters are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from of_transformers import MODELS as PLAIN
from stranger import Stranger, seed


@dataclass(frozen=True)
class Row:
    """One way of peft.

    Attributes:
        plain: the model that it is added to, of transformers.
        config: the name of its class in peft.
        options: of it.
    """

    plain: str
    config: str
    options: Mapping[str, Any]

    def build(self) -> Stranger:
        import peft
        import transformers

        row = PLAIN[self.plain]
        seed()
        config = getattr(transformers, row.config)(**row.sizes)
        added = getattr(peft, self.config)(task_type="CAUSAL_LM", **self.options)
        model = peft.get_peft_model(getattr(transformers, row.model)(config), added).train()
        batch = row.batch(config)
        return Stranger(model, lambda: model(**batch).loss)


_LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}
_LLAMA = {"target_modules": ["q_proj", "v_proj"]}

MODELS: Mapping[str, Row] = {
    "lora gpt2": Row("gpt2", "LoraConfig", {**_LORA, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "lora llama": Row("llama", "LoraConfig", {**_LORA, **_LLAMA}),
    "dora llama": Row("llama", "LoraConfig", {**_LORA, **_LLAMA, "use_dora": True}),
    "ia3 llama": Row(
        "llama",
        "IA3Config",
        {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
    "prefix gpt2": Row("gpt2", "PrefixTuningConfig", {"num_virtual_tokens": 4}),
    "prompt llama": Row("llama", "PromptTuningConfig", {"num_virtual_tokens": 4}),
    "vera llama": Row("llama", "VeraConfig", {**_LLAMA, "r": 4}),
    "loha llama": Row("llama", "LoHaConfig", {**_LLAMA, "r": 4}),
}
