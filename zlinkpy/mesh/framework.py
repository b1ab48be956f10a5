"""Channels of the framework itself: names that start with ``zlink.`` (wire.md §9).

An application can neither register nor call them. Their records need no permit and are handled in the receive turn, so
that a node whose job queue is full still answers its operator. A handler is therefore a plain function that does not
wait and does little; its reply is submitted like an infrastructure record: behind what was submitted before, bounded,
never waited for.

Two kinds. Channels that every node answers: a peer is reached by its RID, and no membership is published, for it would
make two Object Clients require each other (LV-30). And channels of those who want to hear of each other, which are
published: `zlinkpy.mesh.member_channel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from zlinkpy.errors import ProtocolError
from zlinkpy.mesh.dispatch import failure_of
from zlinkpy.messages import CONTENT_TYPE, Codecs, Decoder, Request, packet_name_of, payload_decoder
from zlinkpy.telemetry import get_logger
from zlinkpy.wire import ChannelRequest, ChannelSend, FailureCode, Record, Reply, TerminalResult, encode

if TYPE_CHECKING:
    from zlinkpy.mesh.member_channel import Member, Told
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
        packet = command.payload.packet_name
        members = link.mesh.member_channels.get(channel)
        if type(command) is ChannelRequest:
            asked = members.asked.get(packet) if members is not None else None
            if members is not None and asked is not None:
                link.answer(_confirmed(command, record, members.member_of(link), asked))
            else:
                link.answer(self._answer(command, record, self._answerers.get((channel, packet))))
            return True
        told = members.told.get(packet) if members is not None else None
        if members is None or told is None:
            log.debug("dropped %s on %s: nothing here takes it", packet, channel)
            return True
        try:
            told(members.member_of(link), _payload(command, record))
        except ProtocolError as error:
            log.info("dropped %s on %s: %s", packet, channel, error)
        except Exception:
            log.exception("the framework failed over %s on %s", packet, channel)
        return True

    def _answer(self, command: ChannelRequest, record: Record, answerer: _Answerer | None) -> list[bytes]:
        if answerer is None:
            return _ended(command, TerminalResult.NOT_FOUND, FailureCode.HANDLER_NOT_FOUND)
        try:
            message = answerer.decode(command.payload.content_type, record.parts[0])
        except ProtocolError as error:
            log.info("refused %s on %s: %s", command.payload.packet_name, command.channel_name, error)
            return _ended(command, TerminalResult.PROTOCOL_ERROR, FailureCode.PAYLOAD_DECODE_FAILED)
        try:
            reply = answerer.answer(message)
            shape = self._shapes.of(reply)
            return shape.reply_frames(command.corr, shape.encode(reply))
        except Exception as error:
            log.exception("the framework failed to answer %s on %s", command.payload.packet_name, command.channel_name)
            return _ended(command, *failure_of(error))


def _payload(command: ChannelRequest | ChannelSend, record: Record) -> bytes:
    if command.payload.content_type != CONTENT_TYPE:
        raise ProtocolError(f"{command.payload.content_type} is not {CONTENT_TYPE}", field="body.PayloadHead")
    return record.parts[0]


def _confirmed(command: ChannelRequest, record: Record, member: Member, asked: Told) -> list[bytes]:
    try:
        asked(member, _payload(command, record))
    except ProtocolError as error:
        log.info("refused %s on %s: %s", command.payload.packet_name, command.channel_name, error)
        return _ended(command, TerminalResult.PROTOCOL_ERROR, FailureCode.PAYLOAD_DECODE_FAILED)
    except Exception as error:
        log.exception("the framework failed over %s on %s", command.payload.packet_name, command.channel_name)
        return _ended(command, *failure_of(error))
    return _ended(command, TerminalResult.OK, FailureCode.NONE)


def _ended(command: ChannelRequest, result: TerminalResult, code: FailureCode) -> list[bytes]:
    return encode(Reply(command.corr, int(result), int(code), None, None))
