"""Commands that change what waits, and run statements of the user."""

from __future__ import annotations

from .debuggee import said
from .prompt_arguments import something
from .prompt_commands import Commands
from .prompt_names import statements
from .prompt_terminal import say


class ChangeCommands(Commands):
    """Changing gradients and variables."""

    def do_zero(self, arg: str) -> None:
        """zero [TASK]: make the gradients that wait for the task zero"""
        task = self.at.about(arg)
        self.at.session.zero(task)
        self.at.show_gradients(task)

    def do_scale(self, arg: str) -> None:
        """scale FACTOR [TASK]: multiply the gradients that wait for the task"""
        factor, task = self.at.factor(arg, "scale FACTOR [TASK]")
        self.at.session.scale(factor, task)
        self.at.show_gradients(task)

    def do_clip(self, arg: str) -> None:
        """clip NORM [TASK]: scale the gradients that wait for the task, so that their norm is at most that"""
        norm, task = self.at.factor(arg, "clip NORM [TASK]")
        self.at.session.clip(norm, task)
        self.at.show_gradients(task)

    def do_replace(self, arg: str) -> None:
        """replace EXPRESSION: give the current task this gradient, or these, one per input"""
        task = self.at.about("")
        self.at.session.replace(self.at.value(something(arg, "replace EXPRESSION")))
        self.at.show_gradients(task)

    def do_restore(self, arg: str) -> None:
        """restore [TASK]: undo what was changed of the gradients that wait for the task"""
        task = self.at.about(arg)
        self.at.direct("restore").restore(task)
        self.at.show_gradients(task)

    def do_execute(self, arg: str) -> None:
        """execute STATEMENT  (!STATEMENT, or just x = 3): run it among your variables, where .backward() was called

        What it assigns to is your script's. Of an expression it prints what it gives, unless that is None.
        """
        code = statements(something(arg, "!STATEMENT"))
        if code is None:
            value = self.at.value(arg)
            if value is not None:
                say(*repr(value).splitlines())
            return
        try:
            self.at.names.run(code, self.at.own_names())
        except Exception as error:
            raise ValueError(said(error)) from error
