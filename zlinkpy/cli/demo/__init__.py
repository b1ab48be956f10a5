"""``zlink demo``: a small mesh on this machine, with a crash, in a quarter of a minute."""

from __future__ import annotations

import sys

import click
from attrs import asdict

from zlinkpy.cli.demo.stage import Stage
from zlinkpy.cli.demo.view import LiveView, PlainView, View
from zlinkpy.cli.exit_codes import ExitCode
from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option
from zlinkpy.cli.output import Output
from zlinkpy.cli.stopping import run_until_done

DEFAULT_SECONDS = 12.0

__all__ = ["demo"]


@click.command("demo", cls=ReportingCommand, short_help="Show a small mesh, a crash and a recovery.")
@click.option("--headless", is_flag=True, help="Plain lines instead of a live table; what a pipe gets anyway.")
@click.option(
    "--seconds",
    type=click.FloatRange(5, 600),
    default=DEFAULT_SECONDS,
    show_default=True,
    metavar="N",
    help="How long requests are sent.",
)
@json_option
def demo(headless: bool, seconds: float, as_json: bool) -> None:
    """Start an embedded store and three nodes, send them requests, kill one node, start it again, and sum up.

    Every request is counted by how it ended: answered, cut off (it was on its way to the killed node; the caller is
    told at once), or lost, which must not happen. Everything runs on this machine, in a temporary directory, and is
    gone afterwards.
    """
    output = Output(as_json=as_json)
    view: View = PlainView(output) if headless or as_json or not sys.stdout.isatty() else LiveView()
    try:
        stage = Stage(view, seconds)
        summary = run_until_done(stage.play, stage.clear_at_once)
    finally:
        view.close()
    output.data({"event": "summary", **asdict(summary)}, lambda: [summary.line()])
    if not summary.is_good:
        raise SystemExit(ExitCode.FAILED)
