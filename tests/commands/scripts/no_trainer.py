"""Fine-tunes a small GPT-2 without a trainer: accumulation, clipping, a schedule, an evaluation."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler

torch.manual_seed(3)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
loader = DataLoader(TensorDataset(torch.randint(0, 50, (24, 8))), batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=6)
for epoch in range(2):
    model.train()
    for index, (tokens,) in enumerate(loader):
        loss = model(input_ids=tokens, labels=tokens).loss / 2
        loss.backward()
        if index % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        print(epoch, sum(model(input_ids=tokens, labels=tokens).loss.item() for (tokens,) in loader))
torch.save(model.state_dict(), "model.pt")
