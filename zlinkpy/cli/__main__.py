"""``python -m zlinkpy.cli``: the same as the `zlink` script, for places where scripts are not on the path."""

from zlinkpy.cli import main

main()
