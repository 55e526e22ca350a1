"""Fine-tunes a small BERT on sentence pairs with transformers' Trainer."""

import sys
from dataclasses import dataclass, field

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class DataArguments:
    examples: int = field(default=24)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 60, (count, 12), generator=generator)
        self.labels = torch.randint(0, 2, (count,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def main():
    data, training = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses(sys.argv[1:])
    set_seed(training.seed)
    model = BertForSequenceClassification(
        BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    )
    trainer = Trainer(model=model, args=training, train_dataset=Pairs(data.examples))
    print(trainer.train().global_step)
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
