"""Shared parts of the commands: the argument parser, error messages, the progress line, and targets."""

from __future__ import annotations

import argparse
import errno
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ..inspector.text.option_form import as_options
from .json_output import add_json, tell_error
from .run_script import script_and_function, script_path

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from ..engine.studies.ready_workload import Size

DEMO_POLICIES = ("bfs", "dfs", "heap")


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors without the usage, and `examples` at the end of its help.

    Before the first positional argument, an option of `optional_numbers` takes the next argument only if it is a
    number: `--profile train.py` has none. argparse itself would take `train.py`.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), optional_numbers: Sequence[str] = (), **kwargs: Any
    ) -> None:
        self._optional_numbers = optional_numbers
        lines = "".join(f"\n  {example}" for example in examples)
        kwargs |= (
            {"epilog": f"examples:{lines}", "formatter_class": argparse.RawDescriptionHelpFormatter} if lines else {}
        )
        super().__init__(*args, **kwargs)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words, place = list(sys.argv[1:] if args is None else args), 0
        while self._optional_numbers and place < len(words) and words[place].startswith("-") and words[place] != "--":
            option = self._option_string_actions.get(words[place])
            if words[place] in self._optional_numbers and not "".join(words[place + 1 : place + 2]).isdigit():
                words[place] += f"={option.const if option else ''}"
                option = None
            place += 1 if option is None or option.nargs == 0 else 2
        return super().parse_known_args(words, namespace)

    def set_defaults(self, **kwargs: Any) -> None:
        """Set defaults. If they include a command, also add `--json` and a schema named after the command."""
        if kwargs.get("command") is not None:
            add_json(self)
            kwargs["schema"] = f"{self.prog.removeprefix('tapescope ')}/1"
        super().set_defaults(**kwargs)

    def _commands(self) -> Iterator[argparse.ArgumentParser]:
        """Yield the parsers of the commands that this parser has, and of theirs: `tapescope bench orders` first."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices.values():
                    yield from each._commands()
                    yield each

    def error(self, message: str) -> NoReturn:
        # Add the most similar choice to a message about an invalid one.
        found = re.search(r"invalid choice: ('[^']*') \(choose from (.*)\)", message)
        near = found and get_close_matches(found[1].strip("'"), [each.strip("'") for each in found[2].split(", ")], 1)
        if found and near:
            message = message.replace(found[1], f"{found[1]} (did you mean {near[0]!r}?)", 1)
        elif found and message.startswith("argument -") and ".py" in found[1]:  # an option with an optional value
            message += f"; put {found[1]} before the option"
        if unknown := re.search(r"unrecognized arguments: (-[^\s=]+)", message):
            command = next((each for each in self._commands() if each.prog != self.prog), self)
            close = get_close_matches(unknown[1], command._option_string_actions, 1, 0.7)
            message += f"; did you mean {close[0]}?" if close else f"; {command.prog} --help lists the options"
        tell_error(message)
        self.exit(2, f"{self.prog}: {message}\n")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""The subparsers to which a command adds its parser."""


def refuse(why: object) -> int:
    """Print why the command cannot run, in one sentence. Return the exit code."""
    sentence = as_options(_file_message(why) if isinstance(why, OSError) else why)
    tell_error(sentence)
    print(f"tapescope: {sentence}", file=sys.stderr)
    return 2


def script_raised(error: BaseException, sentence: str) -> int:
    """Print the traceback of an error of the user's script, and a sentence. Return the exit code."""
    from ..widgets.terminal.user_traceback import users_traceback

    traceback = users_traceback(error)
    tell_error(sentence, traceback)
    print(traceback, end="", file=sys.stderr)
    print(f"tapescope: {sentence}", file=sys.stderr)
    return 1


def _file_message(error: OSError) -> str:
    """Return the message of a file error without its error number."""
    if error.filename is None:
        return error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return f"file {error.filename} does not exist"
    if isinstance(error, FileExistsError):
        return f"{error.filename} is a file, not a folder"
    if isinstance(error, IsADirectoryError):
        return f"{error.filename} is a folder, not a file"
    if isinstance(error, PermissionError):
        return f"no permission to read or write {error.filename}"
    return f"{error.filename}: {error.strerror}"


def is_terminal(stream: object) -> bool:
    """Return whether a stream is a terminal. A script may have replaced it by an object with fewer methods, or None."""
    isatty = getattr(stream, "isatty", None)
    return callable(isatty) and bool(isatty())


class ProgressLine:
    """A progress line on stderr, if that is a terminal.

    It has no thread, because the time of a thread would also be measured.
    """

    def __init__(self) -> None:
        self.is_on_terminal = is_terminal(sys.stderr)
        self._quiet = ExitStack()

    def show(self, text: str) -> None:
        """Show progress such as `linear50 (5 of 6): bfs, round 3 of 12`."""
        if self.is_on_terminal:
            # \x1b[K clears the rest of the line.
            # A longer text would take two lines, of which only the second could be overwritten.
            shown = text[: get_terminal_size().columns - 1]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.is_on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressLine:
        from ..inspector.text.progress import quiet

        self._quiet.enter_context(quiet())  # the progress line of a public function would overwrite this one
        return self

    def __exit__(self, *raised: object) -> None:
        self._quiet.close()
        self.clear()


def check_arguments(options: argparse.Namespace) -> None:
    """Check the arguments that can be checked without importing torch, to answer a mistake at once.

    Raises:
        ValueError: a script, policy or size is invalid.
        OSError: a file does not exist.
    """
    from ..engine.studies.workload_table import check_workload

    given = vars(options)
    # `debug` also takes a script alone, and the studies a workload.
    of_script, of_workload = "breaks" in given, "size" in given
    for target in (given[name] for name in ("target", "make_model", "loss_of") if name in given):
        if of_script and (":" not in target or Path(target).is_file()):
            script_path(target)
        elif ":" in target or target.endswith(".py") or not of_workload:
            script_and_function(target)
        else:
            check_workload(target)
    for name in (*given.get("workloads", ()), *filter(None, [given.get("workload")])):
        if ":" in name:
            script_and_function(name)
        else:
            check_workload(name)
    for name in ("first", "second", "trace"):
        if name in given and not given[name].exists():
            raise FileNotFoundError(errno.ENOENT, "", str(given[name]))
    for name in ("memory", "limit", "reserve"):
        if isinstance(given.get(name), str):
            from ..inspector.text.sizes_and_counts import bytes_of

            bytes_of(given[name], f"--{name}")
    if policies := given.get("policy") or given.get("policies"):
        from ..engine.planning.policies import find_policy

        for policy in [policies] if isinstance(policies, str) else policies:
            find_policy(policy)


def print_misplaced(own: Sequence[str], arguments: Sequence[str], command: str, script: str) -> None:
    """Print the first of a script's arguments that is one of a command's `own` options, if there is one."""
    if passed := [each for each in arguments if each.partition("=")[0] in own]:
        print(
            f"tapescope: {passed[0]} stands after the script, so the script gets it; options of tapescope {command} "
            f"stand before {script}",
            file=sys.stderr,
        )


def place_for(option: str, path: Path | None) -> None:
    """Create the folder of an output file. Do it before measuring, so that an error is reported at once."""
    if path is not None:
        if path.is_dir():
            raise ValueError(f"{option} must be the name of a file, got the folder {path}")
        path.parent.mkdir(parents=True, exist_ok=True)


def policies_of(options: argparse.Namespace) -> list[str]:
    """Return the names of the policies to run. Raise ValueError for an unknown one."""
    from ..engine.planning.policies import find_policy

    policies = list(dict.fromkeys(options.policy or DEMO_POLICIES))
    for policy in policies:
        find_policy(policy)
    return policies


@contextmanager
def program(target: str, size: Size) -> Iterator[tuple[str, str, str, Callable[[], Tensor]]]:
    """Yield the name, title and source of a workload or a user's function, and the function that returns its loss."""
    from ..engine.studies.workloads import workload
    from .user_script import make_loss_of

    if ":" in target or target.endswith(".py"):
        with make_loss_of(target) as make_loss:
            yield Path(target).name.replace(".py:", "-"), Path(target).name, "", make_loss
    else:
        found = workload(target)
        yield found.name, f"{found.title} ({found.name}, {size})", found.source, found.build(size)[1]


def print_title(title: str, source: str, console: Console) -> None:
    """Print the title of the measured program, and its source."""
    console.print(title, style="bold", markup=False)
    if source:
        console.print(source, style="dim", markup=False)
    console.print()
