"""Started twice by test_closing_distributed.py: a session of DistributedDataParallel ends early, and training
continues."""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tapescope as ts

STEPS = 3


def close(loss: Tensor) -> None:
    session = ts.debug(loss, engine="native")
    for _ in range(4):
        session.step()
    session.close()
    assert session.over == "closed"


def leave_by_an_error(loss: Tensor) -> None:
    try:
        with ts.debug(loss, engine="native", policy="bfs") as session:
            session.run_to(len(session.graph) // 2)
            raise KeyError("the user's own")
    except KeyError:
        pass


def forget(loss: Tensor) -> None:
    session = ts.debug(loss, engine="native")
    session.step()
    del session
    gc.collect()


def close_in_a_hook(loss: Tensor) -> None:
    session = ts.debug(loss, engine="native")
    handle = loss.grad_fn.next_functions[0][0].register_hook(lambda *_: session.close())
    session.run()
    handle.remove()


def interrupt(loss: Tensor) -> None:
    """Ctrl-C, as a policy of the user's raises it where the session waits."""
    session = ts.debug(loss, engine="native")
    session.step()
    worker = session._backward.worker
    report, worker.report = worker.report, _interrupted
    try:
        session.step()
    except KeyboardInterrupt:
        worker.report = report
    assert session.over is not None and "KeyboardInterrupt" in session.over


def _interrupted() -> None:
    raise KeyboardInterrupt


def on_one_rank(loss: Tensor) -> None:
    if dist.get_rank() == 0:
        close(loss)
    else:
        loss.backward()


ENDS: dict[str, Callable[[Tensor], object]] = {
    "plain": lambda loss: loss.backward(),
    "closed": close,
    "left by an error": leave_by_an_error,
    "forgotten": forget,
    "closed in a hook": close_in_a_hook,
    "interrupted": interrupt,
    "closed on one rank": on_one_rank,
}


def train(end: Callable[[Tensor], object]) -> list[list[float]]:
    """End the first step's session early; later steps run as usual."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), bucket_cap_mb=0.0005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        (end if step != 1 else ENDS["plain"])(loss)
        optimizer.step()
        optimizer.zero_grad()
    return [each.flatten().tolist() for each in model.parameters()]


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    log = {name: train(end) for name, end in ENDS.items()}
    (folder / f"{rank}.json").write_text(json.dumps(log))
    dist.destroy_process_group()
