"""Sets the number of threads before it imports torch, and uses a tensor of each thread count."""

import os
import sys

assert "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "3"
import torch  # noqa: E402

print(torch.get_num_threads())
torch.manual_seed(29)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(200, 300)).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
