"""Channels of the framework itself: names that start with ``zlink.`` (wire.md §9).

An application can neither register nor call them. Their records need no permit and are handled in the receive turn, so
that a node whose job queue is full still answers its operator. A handler is therefore a plain function that does not
wait and does little; its reply is submitted like an infrastructure record: behind what was submitted before, bounded,
never waited for.

A member is reached by its RID. No membership is published for these channels: every node answers them, and a published
one would make two Object Clients require each other (LV-30).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.mesh.dispatch import failure_of
from zlinkpy.messages import Codecs, Decoder, Request, packet_name_of, payload_decoder
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import ChannelRequest, FailureCode, Record, Reply, TerminalResult, encode

if TYPE_CHECKING:
    from zlinkpy.mesh.peer_link import PeerLink
    from zlinkpy.messages import Shapes

log = get_logger("zlinkpy.mesh")

FRAMEWORK_PREFIX = "zlink."
"""What the names of the framework's channels begin with."""


@frozen(eq=False)
class _Answerer:
    decode: Decoder
    answer: Callable[[Any], Any]


class FrameworkChannels:
    """The framework's request handlers of one host, the same on all its meshes."""

    def __init__(self, codecs: Codecs, shapes: Shapes) -> None:
        self._codecs = codecs
        self._shapes = shapes
        self._answerers: dict[tuple[str, str], _Answerer] = {}

    def serve(self, channel: str, request: type[Request[Any]], answer: Callable[[Any], Any]) -> None:
        """Answer `request` on `channel` with what `answer` returns at once."""
        assert channel.startswith(FRAMEWORK_PREFIX), channel
        self._answerers[channel, packet_name_of(request)] = _Answerer(payload_decoder(self._codecs, request), answer)

    def take(self, link: PeerLink, record: Record) -> bool:
        """Handle `record` if it belongs to the framework. One-way messages for a channel nobody serves are dropped:
        they may come from a newer version."""
        command = record.command
        channel = getattr(command, "channel_name", "")
        if not channel.startswith(FRAMEWORK_PREFIX):
            return False
        answerer = self._answerers.get((channel, command.payload.packet_name))
        if type(command) is ChannelRequest:
            link.answer(self._answer(command, record, answerer))
        else:
            log.debug("dropped %s on %s: nothing here takes it", command.payload.packet_name, channel)
        return True

    def _answer(self, command: ChannelRequest, record: Record, answerer: _Answerer | None) -> list[bytes]:
        if answerer is None:
            return _failed(command, TerminalResult.NOT_FOUND, FailureCode.HANDLER_NOT_FOUND)
        try:
            message = answerer.decode(command.payload.content_type, record.parts[0])
        except ProtocolError as error:
            log.info("refused %s on %s: %s", command.payload.packet_name, command.channel_name, error)
            return _failed(command, TerminalResult.PROTOCOL_ERROR, FailureCode.PAYLOAD_DECODE_FAILED)
        try:
            reply = answerer.answer(message)
            shape = self._shapes.of(reply)
            return shape.reply_frames(command.corr, shape.encode(reply))
        except Exception as error:
            log.exception("the framework failed to answer %s on %s", command.payload.packet_name, command.channel_name)
            return _failed(command, *failure_of(error))


def _failed(command: ChannelRequest, result: TerminalResult, code: FailureCode) -> list[bytes]:
    return encode(Reply(command.corr, int(result), int(code), None, None))
