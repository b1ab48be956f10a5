"""What travels with a message and what a handler sees of it (SA §R), and what a host shows of itself (SA §S)."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Note
from tests.puppet import until
from zlinkpy.errors import ProtocolError
from zlinkpy.messages import Codecs, RawMessage
from zlinkpy.wire import Close, NodeRequest, NodeSend, PayloadHead, Reply, encode

codec = Codecs().default
quiet = trio.testing.wait_all_tasks_blocked


@zl.message("order.place")
class Order:
    """As the sender knows it: a newer version, with a field that the receiver has never heard of."""

    item: str
    colour: str = "red"


@zl.message("order.place")
class OldOrder:
    item: str
    count: int = 1


@zl.message("order.place")
class StrictOrder:
    item: str
    customer: str


@pytest.mark.contract("SA-274")
async def test_messages_meet_by_packet_and_field_names(autojump_clock: object, lan: Lan) -> None:
    got: list[OldOrder] = []

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_node_send
        async def order(message: OldOrder, context: zl.MessageContext) -> None:
            assert context.packet_name == "order.place"
            got.append(message)

    async with lan.node("a", port=1, add=add) as a, lan.node("z", peers=[1]) as z:
        await z.ready("a")
        await z.rt.send_to_node(MESH, "a", Order("lamp"))
        await until(lambda: got == [OldOrder("lamp", 1)])
        assert a.rt.status.is_ready


@pytest.mark.contract("SA-274")
async def test_a_missing_field_is_named_and_no_handler_runs(
    autojump_clock: object, lan: Lan, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[StrictOrder] = []

    def add(mesh: zl.Mesh) -> None:
        @mesh.on_node_send
        async def order(message: StrictOrder) -> None:
            got.append(message)

        @mesh.on_node_request
        async def asked(message: Ask) -> Answer:
            return Answer(message.n, "a")

    async with lan.node("a", port=1, add=add) as a, lan.node("z", peers=[1]) as z:
        await z.ready("a")
        await z.rt.send_to_node(MESH, "a", Order("lamp"))
        await trio.sleep(1)
        assert "customer" in caplog.text
        with pytest.raises(ProtocolError):
            await z.rt.request_to_node(MESH, "a", RawMessage("Ask", b"\x81\xa1n\xa1x"))
        assert got == []
        assert z.is_ready("a")
        assert a.telemetry.total("zlink.mesh_node.messages.dropped", reason="decode_error") == 2


@pytest.mark.contract("SA-274")
async def test_a_reply_that_is_not_what_was_declared_is_a_protocol_error(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n") as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))
        head = PayloadHead("Answer", codec.content_type)
        answers = iter(
            [
                (Reply(1, 0, 0, None, head), [codec.encode(Note(1))]),
                (Reply(2, 0, 0, None, None), []),
                (Reply(3, 0, 0, None, PayloadHead("Answer", "application/x-other")), [codec.encode(Answer(1, "p"))]),
                (Reply(4, 0, 0, None, head), [b"\xc1"]),
                (Reply(5, 0, 0, None, head), [codec.encode(Answer(5, "p"))]),
            ]
        )

        def reply(lane: object, record: object) -> bool:
            if type(record.command) is NodeRequest:  # type: ignore[attr-defined]
                command, parts = next(answers)
                pair.completion.send(command, *parts)
            return False

        puppet.hears = reply
        for _ in range(4):
            with pytest.raises(ProtocolError):
                await n.rt.request_to_node(MESH, "puppet", Ask(1), timeout=5)
        assert await n.rt.request_to_node(MESH, "puppet", Ask(1), timeout=5) == Answer(5, "p")
        assert n.is_ready("puppet")


@pytest.mark.contract("SA-275")
async def test_the_context_of_every_kind_of_call(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        await z.rt.send_to_node(MESH, "a", Note())
        await z.rt.request_to_node(MESH, "a", Ask())
        await z.rt.send_to_channel(CHANNEL, Note())
        await z.rt.request_to_channel(CHANNEL, Ask())
        contexts = [context for _, context in a.got]
        assert [context.packet_name for context in contexts] == ["Note", "Ask", "Note", "Ask"]
        assert [context.channel_name for context in contexts] == [None, None, CHANNEL, CHANNEL]
        assert [context.source_rid for context in contexts] == ["z", "z", None, None]
        assert [context.correlation_id is None for context in contexts] == [True, False, True, False]
        for context in contexts:
            assert context.mesh_name == MESH
            assert context.content_type == "application/msgpack"
            assert context.topic is None
            assert dict(context.metadata) == {}
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                context.mesh_name = "other"  # type: ignore[misc]


@pytest.mark.contract("SA-276")
async def test_metadata_arrives_read_only_and_does_not_come_back(autojump_clock: object, lan: Lan) -> None:
    given = {"trace": "äöü", "empty": ""}
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        await z.rt.send_to_channel(CHANNEL, Note(), metadata=given)
        await z.rt.request_to_node(MESH, "a", Ask(), metadata=given)
        await a.rt.send_to_channel(CHANNEL, Note(), metadata=given)
        await until(lambda: len(a.got) == 3)
        for _, context in a.got:
            assert dict(context.metadata) == {"trace": "äöü", "empty": ""}
            with pytest.raises(TypeError):
                context.metadata["trace"] = "x"  # type: ignore[index]
        puppet = lan.puppet()
        pair = await puppet.connect(a.rt.endpoint(MESH))
        request = encode(
            NodeRequest(1, 1000, PayloadHead("Ask", codec.content_type)), metadata=given, parts=[codec.encode(Ask())]
        )
        pair.app.send_raw(request)
        await until(lambda: pair.completion.commands(Reply))
        assert len(request) == 3
        assert [len(frames) for _, frames in pair.completion.frames[1:]] == [2]
        (record,) = (record for _, record in pair.completion.records if type(record.command) is Reply)
        assert record.metadata is None


@pytest.mark.contract("SA-276")
async def test_metadata_has_a_limit_on_both_ends(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        fits = None
        for size in range(1000, 1024):
            try:
                await z.rt.send_to_channel(CHANNEL, Note(size), metadata={"k": "x" * size})
                fits = size
            except ValueError:
                break
        assert fits is not None
        assert fits < 1023
        await until(lambda: a.numbers and a.numbers[-1] == fits)
        before = len(a.got)
        puppet = lan.puppet()
        pair = await puppet.connect(a.rt.endpoint(MESH))
        (head, _, payload) = encode(
            NodeSend(PayloadHead("Note", codec.content_type)), metadata={"k": "x"}, parts=[codec.encode(Note())]
        )
        too_much = b"\x81\xa1k\xda\x04\x00" + b"x" * 1024
        pair.app.send_raw([head, too_much, payload])
        await until(lambda: pair.is_gone)
        (close,) = pair.app.commands(Close)
        assert close.reason == 4
        assert close.field.startswith("metadata")
        assert len(a.got) == before
        assert z.is_ready("a")


@pytest.mark.contract("SA-277")
async def test_an_unknown_content_type_is_not_tried_as_another(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        payload = codec.encode(Ask(1))
        with pytest.raises(ProtocolError):
            await z.rt.request_to_channel(CHANNEL, RawMessage("Ask", payload, "application/x-other"))
        await z.rt.send_to_channel(CHANNEL, RawMessage("Note", codec.encode(Note(1)), "application/x-other"))
        await trio.sleep(1)
        assert a.numbers == []
        reply = await z.rt.request_to_channel(CHANNEL, RawMessage("Ask", payload))
        assert isinstance(reply, RawMessage)
        assert reply.packet_name == "Answer"
        assert codec.decoder_for(Answer)(reply.payload) == Answer(1, "a")


@pytest.mark.contract("SA-281")
async def test_a_status_is_a_copy(autojump_clock: object, lan: Lan) -> None:
    options = zl.JobQueueOptions(max_queued_application_jobs=10)
    async with lan.node("n", weight=70, job_queue=options) as n:
        before, mesh_before = n.rt.status, n.rt.mesh_status(MESH)
        assert (before.permits_in_use, before.permits_maximum, before.pressure) == (0, 10, zl.Pressure.RUNNING)
        assert before.state is zl.HostState.SERVING
        assert before.accepting_work
        assert mesh_before.channel_weights == {CHANNEL: 70}
        held = n.use_up_permits(leave=1)
        n.rt.set_channel_weight(MESH, CHANNEL, 5)
        after, mesh_after = n.rt.status, n.rt.mesh_status(MESH)
        assert (after.permits_in_use, after.pressure) == (9, zl.Pressure.PAUSED)
        assert mesh_after.channel_weights == {CHANNEL: 5}
        assert (before.permits_in_use, before.pressure) == (0, zl.Pressure.RUNNING)
        assert mesh_before.channel_weights == {CHANNEL: 70}
        with pytest.raises(TypeError):
            mesh_after.channel_weights["other"] = 1  # type: ignore[index]
        for status in (after, mesh_after):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                status.state = None  # type: ignore[assignment]
        held.all()
