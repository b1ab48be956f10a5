"""The command group."""

from __future__ import annotations

from importlib.metadata import version

import click

from zlinkpy.cli.call import request, send
from zlinkpy.cli.demo import demo
from zlinkpy.cli.doctor import doctor
from zlinkpy.cli.exit_codes import EPILOG
from zlinkpy.cli.fanout import publish, subscribe
from zlinkpy.cli.keygen import keygen
from zlinkpy.cli.nodes import nodes
from zlinkpy.cli.peers import peers
from zlinkpy.cli.run import run
from zlinkpy.cli.session import session
from zlinkpy.cli.store import store


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=EPILOG)
@click.version_option(version("zlinkpy"), prog_name="zlink", message="%(prog)s %(version)s")
def main() -> None:
    """Run and operate nodes of a zlinkpy mesh. Start with: zlink demo"""


for _command in (run, demo, nodes, peers, request, send, publish, subscribe, session, store, keygen, doctor):
    main.add_command(_command)
