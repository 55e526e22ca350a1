"""Is interrupted by Ctrl-C in its fourth step."""

import os
import signal

import torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
torch.manual_seed(37)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    model(torch.randn(4, 3)).sum().backward()
    if step == 3:
        torch.save(model.state_dict(), "model.pt")
        os.kill(os.getpid(), signal.SIGINT)
    optimizer.step()
