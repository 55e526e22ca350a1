"""The processes that answer for `tapescope mcp`, and the folder whose files they may be asked about."""

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

MOST_BYTES = 256 * 2**20  # of a file that is opened: a run of 100,000 tasks with statistics has some 30 MB
MOST_SESSIONS = 4
LINES, LINE = 100, 2_000  # of an answer, and characters of a line: about what a model reads at once


class ServedFolder:
    """The folder below which files may be named."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve(strict=True)

    def file(self, name: str) -> Path:
        """A file below it.

        Raises:
            ValueError: it is none, or not below the folder, or too large.
        """
        path = self.inside(name)
        if not path.is_file():
            raise ValueError("that is no file below the folder")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"the file has more than {MOST_BYTES:,} bytes, and is not opened")
        return path

    def inside(self, name: str) -> Path:
        """Where it is, links followed.

        Raises:
            ValueError: that is not below the folder.
        """
        asked = Path(name)
        if not name or "\0" in name or asked.is_absolute() or asked.drive or ".." in asked.parts:
            raise ValueError("files are named below the folder of the server, without '..' and not from the root")
        try:
            found = (self.path / asked).resolve()
        except (OSError, RuntimeError):  # links in a circle
            raise ValueError("that is no file below the folder") from None
        if not found.is_relative_to(self.path):
            raise ValueError("that leads out of the folder of the server")
        return found

    def target(self, text: str) -> str:
        """`SCRIPT.py:FUNCTION`, the script as `file` has it."""
        script, colon, function = text.rpartition(":")
        if not colon:
            raise ValueError("expected SCRIPT.py:FUNCTION")
        return f"{self.file(script)}:{function}"


class AnsweringProcess:
    """A process that answers one request after the other, with a limit of time for each."""

    def __init__(self, seconds: float) -> None:
        above = str(Path(__file__).parents[2])
        given = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (above, os.environ.get("PYTHONPATH")))))
        self._seconds = seconds
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.mcp_worker"],  # -P: a torch.py lying about is not imported
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=given,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def ask(self, request: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What it answers; a process that takes too long is ended.

        Raises:
            TimeoutError, EOFError: it has ended; in a sentence.
        """
        assert self._process.stdin is not None
        line = json.dumps({"request": request, "arguments": arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            self.close()
            raise TimeoutError(f"it took more than {self._seconds:g} seconds, and was ended") from None
        except OSError:
            answer = b""
        if not answer:
            self.close()
            raise EOFError(f"its process has ended, with exit code {self._process.returncode}")
        told = json.loads(answer)
        assert isinstance(told, dict)
        return told

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):  # what was not yet written has nobody to read it
                self._process.stdin.close()


def page(told: dict[str, Any], start: int) -> dict[str, Any]:
    """An answer, of its untrusted lines those from `start` on, as many as one answer has."""
    lines = told.pop("untrusted")
    end = start + LINES
    return told | {
        "untrusted": [line if len(line) <= LINE else f"{line[:LINE]}…" for line in lines[start:end]],
        "lines": len(lines),
        "next_start": end if end < len(lines) else None,
    }
