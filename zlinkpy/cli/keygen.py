"""``zlink keygen``: a key pair for one node, the secret half into a file that only its owner can read."""

from __future__ import annotations

import click

from zlinkpy.cli.failures import ReportingCommand
from zlinkpy.cli.options import json_option
from zlinkpy.cli.output import Output
from zlinkpy.security import write_key_file
from zlinkpy.transport import generate_key_pair

DEFAULT_FILE = "zlink.key"


@click.command("keygen", cls=ReportingCommand, short_help="Make the keys of a node.")
@click.option("--out", metavar="FILE", default=DEFAULT_FILE, show_default=True, help="Where to write both keys.")
@click.option("--force", is_flag=True, help="Replace the file when it exists.")
@json_option
def keygen(out: str, force: bool, as_json: bool) -> None:
    """Make a key pair, write it to FILE (mode 0600), and print the public key.

    FILE is what the node is given as key_file under [security]. The public key goes into the allow-lists of the nodes
    it shall talk to, on a line NAME = "KEY". The secret key is printed nowhere.
    """
    output = Output(as_json=as_json)
    pair = generate_key_pair()
    write_key_file(out, pair, replace=force)
    output.data({"key_file": out, "public_key": pair.public}, lambda: [pair.public])
