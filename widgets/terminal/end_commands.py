"""Commands that save, and end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...engine.exports.perfetto import ENDINGS
from ..deck.picture import save_picture
from .prompt_arguments import nothing, something
from .prompt_commands import Commands
from .prompt_terminal import say


class EndCommands(Commands):
    """The end of a session, and of the prompt."""

    def do_save(self, arg: str) -> None:
        """save FILE: what has run as a trace (.json, .perfetto.json) or a page (.html), or the graph (.svg, .png)"""
        path = Path(something(arg, "save FILE")).expanduser()
        session = self.at.session
        save: dict[str, Callable[[Path], Path]] = {
            ".json": lambda path: session.result().save(path),
            ".html": lambda path: session.result().save_html(path),
            ".svg": lambda path: save_picture(session, path),
            ".png": lambda path: save_picture(session, path),
        }
        if path.name.endswith(ENDINGS):
            save[path.suffix] = lambda path: session.result().save_perfetto(path)
        if path.suffix not in save:
            raise ValueError(f"save writes .json, .html, .svg and .png, and can't tell what {arg} is to be")
        say(f"saved in {save[path.suffix](path)}")

    def do_close(self, arg: str) -> bool:
        """close: end the session here; the tasks that are left do not run"""
        nothing(arg, "close")
        self.at.session.close()
        return True

    def do_quit(self, arg: str) -> bool:
        """quit  (q, exit, Ctrl-D): leave the prompt; the session stays as it is"""
        return True
