"""The command `tapescope` in processes of its own, of which none has to import torch: forks of one that has."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

_LONGEST = 1 << 17  # bytes of a request: arguments and environment


@dataclass(frozen=True, slots=True)
class Started:
    """A process that runs, or has."""

    arguments: tuple[str, ...]
    printed: IO[bytes]
    errors: IO[bytes]
    exit_code: IO[str]

    def end(self) -> subprocess.CompletedProcess[str]:
        """Waits until it has ended."""
        code = int(self.exit_code.read())
        self.exit_code.close()
        texts = []
        for stream in (self.printed, self.errors):
            stream.seek(0)
            texts.append(stream.read().decode())
            stream.close()
        return subprocess.CompletedProcess(self.arguments, code, *texts)


@dataclass(frozen=True, slots=True)
class WarmCommand:
    """Starts `tapescope` as its console script does."""

    control: socket.socket

    def start(self, *arguments: str, environment: Mapping[str, str], typed: str = "") -> Started:
        """With these lines on its standard input, which then ends."""
        given, typing = os.pipe()
        with os.fdopen(typing, "w") as keyboard:
            keyboard.write(typed)
        reading, exit_code = os.pipe()
        printed, errors = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        request = json.dumps([arguments, dict(environment), os.getcwd()]).encode()
        socket.send_fds(self.control, [request], [given, printed.fileno(), errors.fileno(), exit_code])
        os.close(given)
        os.close(exit_code)
        return Started(arguments, printed, errors, os.fdopen(reading))


@contextmanager
def warm_command() -> Iterator[WarmCommand]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen([sys.executable, Path(__file__), str(theirs.fileno())], pass_fds=[theirs.fileno()])
    with ours:
        yield WarmCommand(ours)
    server.wait()


def _serve(control: socket.socket) -> None:
    """Forks for each request. Returns in the fork, which is then like a process that was started so."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for those that wait
    while True:
        request, files, _, _ = socket.recv_fds(control, _LONGEST, 4)
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for each in files:
            os.close(each)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control.close()
    process = os.fork()
    if process:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.write(files[3], str(code).encode())
        os._exit(0)
    for place, each in enumerate(files):
        if place < 3:
            os.dup2(each, place)
        os.close(each)
    arguments, environment, folder = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = ["tapescope", *arguments]


if __name__ == "__main__":
    for module in ("commands.script", "widgets.terminal.prompt", "widgets.terminal.every_backward"):
        import_module(f"tapescope.{module}")
    for module in ("torch.fx.experimental.symbolic_shapes", "torch._dynamo"):  # for a first backward, and optimizer
        import_module(module)
    from tapescope.__main__ import main

    _serve(socket.socket(fileno=int(sys.argv[1])))
    atexit.register(gc.freeze)  # Python's last collections would touch, and so copy, all that is shared
    sys.exit(main())
