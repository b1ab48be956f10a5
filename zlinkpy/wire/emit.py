"""Writing the straight-line codecs that the schema asks for, once, at import.

A record is decoded and encoded by a function generated from its class, the way attrs generates `__init__`: no loop over
fields and no dispatch per element remain on the hot path. Generated code only *decides*: it raises `Misfit` for
anything it does not accept and says nothing more. Who needs the reason runs the interpreting pass of the same schema
(`WireType.check` / `WireType.dump`) over the same input, which names the field. So the fast half has no error texts,
the explaining half has no speed to lose, and a property test holds the two to one verdict.

Rejected: one interpreting pass for everything (18 us for a small request), and hand-written codecs per command (forty
places to forget a rule in).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Misfit(Exception):
    """Generated code does not accept the input. Never leaves `zlinkpy.wire`."""


class Emitter:
    """Collects the lines of one generated function and the objects they refer to."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0
        self._globals: dict[str, Any] = {"Misfit": Misfit}

    def fresh(self) -> str:
        """A local name that is not used yet."""
        self._names += 1
        return f"v{self._names}"

    def bind(self, value: object, name: str | None = None) -> str:
        """A global name through which generated code reaches `value`."""
        if name is None:
            name = f"k{len(self._globals)}"
        assert self._globals.setdefault(name, value) is value, f"{name} means two things"
        return name

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def refuse_if(self, condition: str) -> None:
        self.line(f"if {condition}: raise Misfit")

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines added inside are the body of `header`."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    def choose(self, branches: Iterable[tuple[str, Callable[[], str]]]) -> str:
        """A local that gets the expression of the first branch whose condition holds; none holding refuses the input.

        A branch is a condition and a function that emits the lines of its body and returns the expression.
        """
        out = self.fresh()
        word = "if"
        for condition, emit in branches:
            with self.block(f"{word} {condition}:"):
                self.line(f"{out} = {emit()}")
            word = "elif"
        with self.block("else:"):
            self.line("raise Misfit")
        return out

    def function(self, label: str, arguments: str) -> Callable[..., Any]:
        """Compile what was collected. `label` shows up in tracebacks and profiles."""
        source = f"def {label}({arguments}):\n" + "\n".join(self._lines) + "\n"
        exec(compile(source, f"<zlinkpy.wire {label}>", "exec"), self._globals)  # noqa: S102 - our own text only
        function: Callable[..., Any] = self._globals[label]
        function.__doc__ = source
        return function
