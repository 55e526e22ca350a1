"""Worker processes of `tapescope mcp`, and the folder that it serves."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 256 * 2**20  # per file; a run of 100,000 tasks with statistics has about 30 MB
MOST_SESSIONS = 4
LINES, LINE = 100, 2_000  # per answer, and characters per line; about what a model reads at once


class ServedFolder:
    """The folder that contains all files a client may open."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve(strict=True)

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder.

        Raises:
            ValueError: it is not a file in the folder, or is too large.
        """
        path = self.inside(name)
        if not path.is_file():
            raise ValueError("the folder has no such file")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"the file has more than {MOST_BYTES:,} bytes, the most that is opened")
        return path

    def inside(self, name: str) -> Path:
        """Return a path in the folder, with links resolved.

        Raises:
            ValueError: the path is not in the folder.
        """
        relative = Path(name)
        if not name or "\0" in name or relative.is_absolute() or relative.drive or ".." in relative.parts:
            raise ValueError("a file name must be relative to the server's folder and must not contain '..'")
        try:
            found = (self.path / relative).resolve()
        except (OSError, RuntimeError):  # circular links
            raise ValueError("the folder has no such file") from None
        if not found.is_relative_to(self.path):
            raise ValueError("that path leads out of the server's folder")
        return found

    def target(self, text: str) -> str:
        """Return `SCRIPT.py:FUNCTION` with the script's full path, which `file` checks."""
        script, colon, function = text.rpartition(":")
        if not colon:
            raise ValueError(f"expected SCRIPT.py:FUNCTION, got {text!r}")
        return f"{self.file(script)}:{function}"


class AnsweringProcess:
    """A worker process that answers requests one after the other, each with a time limit."""

    def __init__(self, seconds: float) -> None:
        above = str(Path(__file__).parents[2])
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (above, os.environ.get("PYTHONPATH")))))
        self._seconds = seconds
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            # -P: do not import a torch.py from the current folder.
            [sys.executable, "-P", "-m", f"{__package__}.mcp_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        # A pipe cannot be read with a timeout on all platforms, so a thread moves answers to a queue.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")  # the process has ended

    def ask(self, request: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer. A process that exceeds the time limit is ended.

        Raises:
            TimeoutError: the request took too long.
            EOFError: the process has ended.
        """
        assert self._process.stdin is not None
        line = json.dumps({"request": request, "arguments": arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            self.close()
            raise TimeoutError(f"the request took more than {self._seconds:g} seconds and was ended") from None
        except OSError:
            answer = b""
        if not answer:
            self.close()
            raise EOFError(f"the worker process ended with exit code {self._process.returncode}")
        content = json.loads(answer)
        assert isinstance(content, dict)
        return content

    def close(self) -> None:
        """End the process."""
        # A script may ignore a request to end.
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):  # closing flushes the rest of a request, which nobody reads
                self._process.stdin.close()


def page(content: dict[str, Any], start: int) -> dict[str, Any]:
    """Return an answer with only the untrusted lines from `start` on, at most `LINES` of them."""
    lines = content.pop("untrusted")
    end = start + LINES
    return content | {
        "untrusted": [line if len(line) <= LINE else f"{line[:LINE]}…" for line in lines[start:end]],
        "lines": len(lines),
        "next_start": end if end < len(lines) else None,
    }
