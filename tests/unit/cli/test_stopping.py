"""Signals: the first cancels and lets cleanup run; handlers are given back."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from zlinkpy.cli.exit_codes import ExitCode
from zlinkpy.cli.failures import Interrupted
from zlinkpy.cli.stopping import run_until_done


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_a_signal_cancels_the_command_and_its_cleanup_runs(number: int, code: ExitCode) -> None:
    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
                cleaned.append(True)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as raised:
        run_until_done(main)
    assert raised.value.code is code
    assert cleaned == [True]
    assert signal.getsignal(number) is before


def test_a_signal_that_comes_when_all_is_done_changes_nothing() -> None:
    async def main() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 7

    assert run_until_done(main) == 7


def test_a_second_sigterm_is_no_reason_to_hurry() -> None:
    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run_until_done(main)
