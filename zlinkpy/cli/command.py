"""The command group."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

import click

from zlinkpy.cli.exit_codes import EPILOG

_MODULES = {
    "demo": "demo",
    "doctor": "doctor",
    "keygen": "keygen",
    "nodes": "nodes",
    "peers": "peers",
    "publish": "fanout",
    "request": "call",
    "run": "run",
    "send": "call",
    "session": "session",
    "store": "store",
    "subscribe": "fanout",
}
"""Command -> the module here that holds it under its name."""


class Commands(click.Group):
    """Imports a command when it is asked for: a node should not wait for what draws the tables of another command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command = getattr(import_module(f"zlinkpy.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=EPILOG
)
@click.version_option(version("zlinkpy"), prog_name="zlink", message="%(prog)s %(version)s")
def main() -> None:
    """Run and operate nodes of a zlinkpy mesh. Start with: zlink demo"""
