"""Two buses as one: control signals over the first, EVENT and STATUS over the second."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from zlinkpy.errors import ZlinkError
from zlinkpy.sessions.spi import SessionSignalBus, SignalHandler, Subscription
from zlinkpy.sessions.types import SessionSignal


class _Both:
    def __init__(self, *subscriptions: Subscription) -> None:
        self._subscriptions = subscriptions

    async def aclose(self) -> None:
        for each in self._subscriptions:
            await each.aclose()


class SplitSignalBus:
    """A `SessionSignalBus` of two. Opening and closing them is up to whoever made them."""

    def __init__(self, control: SessionSignalBus, events: SessionSignalBus) -> None:
        self._control = control
        self._events = events

    async def subscribe(self, session_id: str, handler: SignalHandler, events: bool = True) -> Subscription:
        """Raises what the buses raise; then nothing is subscribed."""
        control = await self._control.subscribe(session_id, handler, events=False)
        if not events:
            return control
        try:

            def only_events(signal: SessionSignal) -> None:
                # The second bus has no other way to leave its control channel out, and a duplicate is no use.
                if not signal.kind.is_control:
                    handler(signal)

            return _Both(control, await self._events.subscribe(session_id, only_events, events=True))
        except BaseException:
            with trio.CancelScope(shield=True):
                await control.aclose()
            raise

    async def publish(self, signal: SessionSignal) -> None:
        """Raises what the kind's bus raises."""
        await (self._control if signal.kind.is_control else self._events).publish(signal)

    async def publish_all(self, signals: Sequence[SessionSignal]) -> None:
        """Raises the first failure, that of a control signal first, once both buses have been given theirs."""
        failure: ZlinkError | None = None
        for bus, control in ((self._control, True), (self._events, False)):
            own = [signal for signal in signals if signal.kind.is_control is control]
            if own:
                try:
                    await bus.publish_all(own)
                except ZlinkError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
