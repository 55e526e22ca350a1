"""The verbs that drive a backward at the prompt, in `%tapescope` and over MCP: names, arguments and help of each.

The prompt runs a verb by the function `do_VERB` of `widgets/terminal/commands.py`, `%tapescope` by a row of `CALLS` in
`widgets/magic/magic_verbs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Surface: TypeAlias = Literal["prompt", "script", "mcp", "magic"]
"""The places where a verb can be typed. "script" is the prompt of `tapescope debug`."""

PROMPTS: tuple[Surface, ...] = ("prompt", "script")
SAFE: tuple[Surface, ...] = (*PROMPTS, "mcp")
"""MCP has the verbs that look, run and stop. None evaluates an expression, changes a value or writes a file."""
CHANGES: tuple[Surface, ...] = (*PROMPTS, "magic")
ALL: tuple[Surface, ...] = (*SAFE, "magic")


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    Attributes:
        usage: its name and the syntax of its arguments.
        on: where it can be typed.
        takes: the kind of its argument, by which Tab completes it.
        aliases: its other names at the prompt.
        aliases_text: how help shows the aliases, if not as they are.
        magic: its usage after `%tapescope`, if it differs.
        repeats: Enter alone repeats it at the prompt; False for verbs that change gradients.
        details: the lines that `help VERB` adds.
    """

    usage: str
    help: str
    on: tuple[Surface, ...] = SAFE
    takes: str = ""
    aliases: str = ""
    aliases_text: str = ""
    magic: str = ""
    repeats: bool = False
    details: str = ""

    @property
    def name(self) -> str:
        return self.usage.partition(" ")[0]

    def check(self, argument: str) -> None:
        """Raise ValueError if the prompt's argument is missing, or given to a verb that takes none.

        The parser of conditions has its own message, which lists them.
        """
        syntax = self.usage.removeprefix(self.name).strip()
        if argument.strip() and not syntax and self.name not in ("quit", "detach"):  # `quit()` is meant well
            raise ValueError(f"{self.name} takes no argument, got {argument!r}")
        if not argument.strip() and syntax and not syntax.startswith("[") and self.takes != "condition":
            raise ValueError(f"missing argument; usage: {self.usage}")

    @property
    def help_lines(self) -> list[str]:
        """The answer to `help VERB`; the first line has the usage and a summary."""
        aliases = self.aliases_text or ", ".join(self.aliases.split())
        first = f"{self.usage}{f'  ({aliases})' if aliases else ''}: {self.help}"
        return [first, *(["", *self.details.splitlines()] if self.details else [])]


GROUPS: dict[str, tuple[Verb, ...]] = {
    "run": (
        Verb(
            "step [N | TASK] [on DEVICE]",
            "run one task, the next N, or the ready task TASK",
            on=ALL,
            takes="ready task",
            aliases="s",
            repeats=True,
            details=(
                "Stops early at a breakpoint or watchpoint. TASK, as 53rd, may be any task of the ready queue, "
                "with the direct\n"
                "engine. `step on cuda:0` runs tasks of that device alone, in the order of its own queue."
            ),
        ),
        Verb(
            "over",
            "run the rest of the current task's module call",
            on=ALL,
            aliases="n next step_over",
            repeats=True,
            details="Calls inside it are included. Without a capture of the forward, runs one task.",
        ),
        Verb(
            "out",
            "run the rest of the module call around it; at the top, run to the end",
            on=ALL,
            aliases="r return finish step_out",
            repeats=True,
        ),
        Verb(
            "until TASK",
            "run the tasks before TASK",
            takes="coming task",
            aliases="u unt run_to",
            repeats=True,
            details="TASK is its place in this run, 53rd or 53; or #26, its number in the order of creation.",
        ),
        Verb(
            "continue",
            "run to the next breakpoint or watchpoint, or to the end",
            on=("prompt", "mcp", "magic"),
            aliases="c cont run",
            magic="run",
            repeats=True,
            details=(
                "Ctrl-C stops before the next task; a second Ctrl-C raises KeyboardInterrupt, and ends the session."
            ),
        ),
        Verb(
            "continue",
            "run to the next breakpoint or watchpoint, or on to the script's next backward",
            on=("script",),
            aliases="c cont run",
            repeats=True,
            details=(
                "There the prompt opens before the first task; with breakpoints or watchpoints, where one of "
                "them stops it.\n"
                "Ctrl-C stops before the next task; a second one raises KeyboardInterrupt in the script. What a "
                "task has raised\n"
                "is raised in the script."
            ),
        ),
        Verb(
            "policy [NAME]",
            "choose the next tasks by another policy",
            takes="policy",
            details="NAME is heap (PyTorch's own), bfs, dfs, ..., or a variable of yours: a Policy or a function.",
        ),
    ),
    "go back": (
        Verb(
            "back [N]",
            "undo the last task, or the last N",
            on=ALL,
            aliases="undo",
            repeats=True,
            details="Running the same tasks again continues the same branch; anything else begins a new one.",
        ),
        Verb("goto TASK", "go back to before TASK, or run to it", on=ALL, takes="task"),
        Verb(
            "branch [N]",
            "go to the end of branch N; branch alone lists the branches",
            on=CHANGES,
            takes="branch",
        ),
        Verb("branches", "list this session's branches and their differences", on=PROMPTS),
    ),
    "look": (
        Verb(
            "where [TASK]",
            "show the next task, its module calls, its source line and its waiting gradients",
            takes="task",
            aliases="w bt",
        ),
        Verb(
            "list [TASK]",
            "show the source around the line that created the task",
            takes="task",
            aliases="l",
            details=(
                "Without TASK: the task that a watchpoint has just found, else the current one. The same holds "
                "for info, saved\n"
                "and check."
            ),
        ),
        Verb(
            "info [TASK | stops]",
            "show all facts of a task, or the breakpoints and watchpoints",
            takes="task or stops",
            aliases="i",
        ),
        Verb("queue", "list the ready tasks in the order in which the policy would run them", aliases="ready"),
        Verb("find TEXT", "list the tasks whose name, module, parameter or source line contains TEXT", takes="name"),
        Verb(
            "print EXPRESSION",
            "print the value of EXPRESSION",
            on=PROMPTS,
            takes="expression",
            aliases="p",
            details=(
                "It can use your variables, and session, task and gradients: the current task and its waiting "
                "gradients. t is\n"
                "torch, unless you have a t."
            ),
        ),
        Verb("pp EXPRESSION", "pretty-print the value of EXPRESSION", on=PROMPTS, takes="expression"),
        Verb("saved [TASK]", "list the tensors that the task's node saved for backward", takes="task"),
        Verb("slowest [N]", "list the slowest operations, modules and tasks so far; N rows of each"),
        Verb("memory", "show the memory that this backward holds, and the cost of undo", aliases="history"),
        Verb(
            "check [TASK]",
            "compare the task's backward with finite differences of its forward operation",
            on=ALL,
            takes="task",
            details="Needs the operation's inputs: ts.capture(keep_inputs=True), tapescope debug --keep-inputs.",
        ),
    ),
    "stop": (
        Verb(
            "break [WHERE] [, hit N] [, CONDITION]",
            "stop before tasks",
            on=ALL,
            takes="place",
            aliases="b",
            details=(
                "WHERE is a task (53rd), a node's name (Addmm), a module (encoder.layer.3: as it is entered), a "
                "parameter (before\n"
                "its gradient is accumulated), a line (model.py:120). Names may be patterns (encoder.*.norm*). "
                "task:, kind:,\n"
                "module:, grad: and line: in front say which is meant. CONDITION is an expression of task and "
                "gradients; "
                "break if CONDITION\n"
                "asks it before each task. hit N stops at the Nth only. At the prompt, break alone lists the "
                "breakpoints."
            ),
        ),
        Verb("tbreak WHERE ...", "stop once: the breakpoint is deleted when it has stopped a run", takes="place"),
        Verb(
            "watch CONDITION [at MODULE]",
            "stop where a gradient meets CONDITION",
            on=ALL,
            takes="condition",
            details=(
                "nan, inf, zero, norm>1e3, norm<1e-8, ratio>100 (of a module's output to input gradients), "
                "upcast, shape, missing\n"
                "(a parameter has no gradient at the end), or if EXPRESSION of gradient and task. One or "
                "another: nan or inf;\n"
                "both: zero and norm<1. MODULE may be a pattern: watch norm>1e3 or ratio>100 at encoder.*"
            ),
        ),
        Verb("stops", "list the breakpoints and watchpoints", on=ALL),
        Verb("enable N", "enable breakpoint or watchpoint N", on=ALL, takes="stop"),
        Verb("disable N", "disable it, and keep its number", on=ALL, takes="stop"),
        Verb("delete N", "delete breakpoint or watchpoint N", on=ALL, takes="stop", aliases="clear cl"),
        Verb("stop", "nothing runs while the prompt waits; Ctrl-C stops a run", on=PROMPTS),
        Verb("stop", "stop the run before its next task", on=("magic",)),
    ),
    "change": (
        Verb("zero [TASK]", "set the task's waiting gradients to zero", on=CHANGES, takes="task", magic="zero"),
        Verb(
            "scale FACTOR [TASK]",
            "multiply the task's waiting gradients by FACTOR",
            on=CHANGES,
            takes="expression",
            magic="scale FACTOR",
        ),
        Verb(
            "clip NORM [TASK]",
            "scale the task's waiting gradients to a norm of at most NORM",
            on=CHANGES,
            takes="expression",
            magic="clip NORM",
        ),
        Verb(
            "replace EXPRESSION",
            "replace the current task's gradient; give one for each input",
            on=PROMPTS,
            takes="expression",
        ),
        Verb(
            "restore [TASK]",
            "undo the edits of the task's waiting gradients",
            on=CHANGES,
            takes="task",
            magic="restore",
        ),
        Verb(
            "execute STATEMENT",
            "run STATEMENT among your variables, where .backward() was called",
            on=PROMPTS,
            takes="expression",
            aliases="!",
            aliases_text="!STATEMENT, or just x = 3",
            details=(
                "Its assignments change your script's variables. For an expression, prints the value unless it is None."
            ),
        ),
    ),
    "end": (
        Verb(
            "save FILE",
            "save the run as a trace (.json, .perfetto.json) or a page (.html), or the graph (.svg, .png)",
            on=PROMPTS,
            takes="file",
        ),
        Verb("close", "end the session without running the remaining tasks", on=("prompt",)),
        Verb("close", "end this backward without running its remaining tasks; the script continues", on=("script",)),
        Verb("detach", "close the prompt; this backward and the script run to their end", on=("script",)),
        Verb(
            "quit",
            "leave the prompt; the session stays as it is",
            on=("prompt",),
            aliases="q exit EOF",
            aliases_text="q, exit, Ctrl-D",
        ),
        Verb("quit", "end the script", on=("script",), aliases="q exit EOF", aliases_text="q, exit, Ctrl-D"),
        Verb("help [COMMAND]", "list the commands, or explain one", aliases="h", aliases_text="h, ?"),
    ),
    "ask": (
        Verb(
            "compare [NAME ...] [--accumulate A ...] [--release R ...]",
            "compare the memory that the graph would take under these policies and rules",
            on=("magic",),
            takes="policy",
        ),
        Verb(
            "predict",
            "predict the memory of a graph above 5,000 tasks; smaller ones are predicted unasked",
            on=("magic",),
        ),
        Verb(
            "advise MAKE_LOSS",
            "try what could be changed in your program: MAKE_LOSS is a function that returns the loss. Needs no deck",
            on=("magic",),
        ),
        Verb(
            "export FILE",
            "save the deck as a page (.html), the trace (.json, .perfetto.json) or the graph (.svg, .png)",
            on=("magic",),
        ),
    ),
}
"""All verbs, under the headings and in the order of help. A verb whose help differs by surface has a row for each."""

ROWS = tuple(verb for verbs in GROUPS.values() for verb in verbs)

SHORT = {alias: verb.name for verb in ROWS for alias in verb.aliases.split()}
"""The full name of each alias."""

MAGICS = {
    name: verb
    for verb in ROWS
    if "magic" in verb.on
    for name in dict.fromkeys(((verb.magic or verb.name).partition(" ")[0], verb.name))
}
"""The verbs of `%tapescope`, by name."""


def verbs_on(surface: Surface) -> dict[str, Verb]:
    """Return the verbs of one surface by name, in the order of help."""
    return {verb.name: verb for verb in ROWS if surface in verb.on}


def magic_help() -> str:
    """Return the list of verbs that `%tapescope?` shows."""
    lines: list[str] = []
    for group, verbs in GROUPS.items():
        found = [verb for verb in verbs if "magic" in verb.on]
        lines += [f"{group.capitalize()}:"] if found else []
        for verb in found:
            lines += [f"%tapescope {verb.magic or verb.usage}"]
            lines += [f"    {line}" for line in (verb.help, *verb.details.splitlines())]
        lines += [""] if found else []
    return "\n".join(lines)
