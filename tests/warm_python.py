"""Python in separate processes that need not import torch: forks of a process that already has.

For tests that need a fresh process. Tests of imports, of terminals and of what starts Python stay with `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
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
from types import ModuleType
from typing import IO

_LONGEST = 1 << 17  # bytes of a request: arguments and environment


@dataclass(frozen=True, slots=True)
class Started:
    """A process that runs, or has."""

    arguments: tuple[str, ...]
    printed: IO[bytes]
    errors: IO[bytes]
    fate: IO[str]
    """Tells the process's id on one line, and once it has ended its exit code on the next."""

    def end(self, limit_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Waits until it has ended. After the limit it is killed, which its exit code tells."""
        process = int(self.fate.readline())
        if not select.select([self.fate], [], [], limit_s)[0]:
            os.kill(process, signal.SIGKILL)
        code = int(self.fate.readline())
        self.fate.close()
        texts = []
        for stream in (self.printed, self.errors):
            stream.seek(0)
            texts.append(stream.read().decode())
            stream.close()
        return subprocess.CompletedProcess(self.arguments, code, *texts)


@dataclass(frozen=True, slots=True)
class WarmPython:
    """Starts Python with the arguments that `python` takes: `-c CODE ...` or `FILE ...`."""

    control: socket.socket

    def start(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        typed: str = "",
    ) -> Started:
        """With these lines on its standard input, which then ends."""
        words = tuple(map(str, arguments))
        given, typing = os.pipe()
        with os.fdopen(typing, "w") as keyboard:
            keyboard.write(typed)
        reading, fate = os.pipe()
        printed, errors = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        request = json.dumps([words, dict(os.environ if environment is None else environment), str(cwd or os.getcwd())])
        socket.send_fds(self.control, [request.encode()], [given, printed.fileno(), errors.fileno(), fate])
        os.close(given)
        os.close(fate)
        return Started(words, printed, errors, os.fdopen(reading, buffering=1))

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.start(*arguments, cwd=cwd).end()


@contextmanager
def warm_python(*modules: str) -> Iterator[WarmPython]:
    """Processes that have imported these modules."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, Path(__file__), str(theirs.fileno()), *modules]
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    with ours:
        yield WarmPython(ours)
    server.wait()


def _serve(control: socket.socket) -> list[str]:
    """Forks for each request. Returns its arguments in the fork, which is then like a process that was started so."""
    waiting: list[int] = []
    while True:
        request, files, _, _ = socket.recv_fds(control, _LONGEST, 4)
        if not request:
            os._exit(0)
        waits = os.fork()
        if not waits:
            break
        waiting = [each for each in [*waiting, waits] if os.waitpid(each, os.WNOHANG) == (0, 0)]
        for each in files:
            os.close(each)
    control.close()
    process = os.fork()
    if process:
        os.write(files[3], f"{process}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.write(files[3], f"{code}\n".encode())
        os._exit(0)
    for place, each in enumerate(files):
        if place < 3:
            os.dup2(each, place)
        os.close(each)
    arguments: list[str]
    arguments, environment, folder = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return arguments


def _main_of(arguments: list[str]) -> tuple[str, str]:
    """Makes `__main__`, `sys.argv` and `sys.path` those of `python ARGUMENTS`. Returns the code and its file's name."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    first, *others = arguments
    if first == "-c":
        code, *others = others
        sys.argv[:] = ["-c", *others]
        sys.path.insert(0, "")
        return code, "<string>"
    sys.argv[:] = arguments
    sys.path.insert(0, str(Path(first).resolve().parent))
    main.__file__ = first
    return Path(first).read_text(encoding="utf-8"), first


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    for module in sys.argv[2:]:
        import_module(module)
    code = compile(*_main_of(_serve(socket.socket(fileno=int(sys.argv[1])))), "exec", dont_inherit=True)
    atexit.register(gc.freeze)  # Python's last collections would touch, and so copy, all that is shared
    exec(code, vars(sys.modules["__main__"]))
