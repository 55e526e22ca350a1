"""A worker thread keeps what a loop puts into its queue."""

from __future__ import annotations

import threading
from queue import Queue

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("kept[0]", "log()", ".item()", "queue_of_worker_thread.py")


def log(waiting: Queue[torch.Tensor], done: threading.Event) -> None:
    kept = []
    while not done.is_set():
        kept.append(waiting.get())
        waiting.task_done()


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    waiting: Queue[torch.Tensor] = Queue()
    done = threading.Event()
    threading.Thread(target=log, args=(waiting, done), daemon=True).start()

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        if number == 7:
            done.set()
        waiting.put(net[2].weight.square().sum())
        waiting.join()

    return watched(net, optimizer, step)
