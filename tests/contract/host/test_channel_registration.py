"""What a host refuses of ClientServer channels before it opens anything (SA §A, LO §1, wire.md §9, §11)."""

from __future__ import annotations

from typing import Any

import pytest

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, Answer, Ask, Lan, Note
from tests.contract.host.test_registration import Build, refused, starts

SERVER = "tcp://127.0.0.1:5501"


def on_a_mesh_and_served(host: zl.Host) -> None:
    host.mesh("one").use_channel("talk")
    host.serve_client_server("talk")


def on_a_mesh_and_used(host: zl.Host) -> None:
    host.use_client_server("talk", servers=[SERVER])
    host.mesh("one").serve_channel("talk")


def served_twice(host: zl.Host) -> None:
    host.serve_client_server("talk")
    host.serve_client_server("talk", weight=0)


def used_twice(host: zl.Host) -> None:
    host.use_client_server("talk", servers=[SERVER])
    host.use_client_server("talk", servers=[SERVER])


@pytest.mark.contract("SA-02")
@pytest.mark.parametrize("build", [on_a_mesh_and_served, on_a_mesh_and_used, served_twice, used_twice])
async def test_a_channel_has_one_send_path_and_each_role_once(autojump_clock: object, lan: Lan, build: Build) -> None:
    await refused(lan, build, "'talk' is (registered|served|used)")


@pytest.mark.contract("SA-02")
async def test_client_and_server_of_one_channel_may_be_in_one_process(autojump_clock: object, lan: Lan) -> None:
    def build(host: zl.Host) -> None:
        host.serve_client_server("talk")
        host.use_client_server("talk", servers=[SERVER])
        host.mesh("one").use_channel("tell")

    await starts(lan, build)


@pytest.mark.contract("LO-001", "LO-003")
async def test_a_client_has_to_be_told_where_its_servers_are(autojump_clock: object, lan: Lan) -> None:
    await refused(lan, lambda host: host.use_client_server("talk"), "set location_store")
    await starts(lan, lambda host: host.use_client_server("talk", servers=[SERVER]))
    await starts(lan, lambda host: host.use_client_server("talk"), location_store=lan.store)


@pytest.mark.contract("SA-20", "SA-22", "SA-23")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weight": -1}, "weight"),
        ({"weight": 10_001}, "weight"),
        ({"rid_prefix": ""}, "rid_prefix"),
        ({"rid_prefix": "a b"}, "rid_prefix"),
        ({"rid": "x", "rid_prefix": "y"}, "exclude each other"),
        ({"rid": ""}, "rid"),
        ({"listen": "tcp://0.0.0.0:0"}, "advertise_host"),
        ({"listen": "tcp://[::]:5501"}, "advertise_host"),
        ({"listen": "udp://127.0.0.1:1"}, "not an endpoint"),
        ({"advertise_host": "0.0.0.0"}, "advertise_host"),  # noqa: S104 - what is refused
        ({"max_message_bytes": -1}, "max_message_bytes"),
        ({"max_message_bytes": 1023}, "max_message_bytes"),
        ({"max_message_bytes": 2**32}, "max_message_bytes"),
        ({"max_message_bytes": True}, "max_message_bytes"),
    ],
)
async def test_a_server_that_cannot_work_is_refused(
    autojump_clock: object, lan: Lan, options: dict[str, Any], match: str
) -> None:
    await refused(lan, lambda host: host.serve_client_server("talk", **options), match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"servers": ["tcp://0.0.0.0:5501"]}, "cannot be dialled"),
        ({"servers": ["tcp://127.0.0.1:0"]}, "cannot be dialled"),
        ({"servers": SERVER}, "sequence of endpoints"),
        ({"servers": [SERVER], "default_request_timeout": 0}, "default_request_timeout"),
        ({"servers": [SERVER], "max_message_bytes": 12}, "max_message_bytes"),
    ],
)
async def test_a_client_that_cannot_work_is_refused(
    autojump_clock: object, lan: Lan, options: dict[str, Any], match: str
) -> None:
    await refused(lan, lambda host: host.use_client_server("talk", **options), match)


@pytest.mark.parametrize("name", ["", "zlink.x", "a\0b", "x" * 256])
async def test_a_channel_name_has_its_form(autojump_clock: object, lan: Lan, name: str) -> None:
    await refused(lan, lambda host: host.serve_client_server(name), "channel")
    await refused(lan, lambda host: host.use_client_server(name, servers=[SERVER]), "channel")


@pytest.mark.contract("SA-22")
async def test_a_fixed_id_is_for_manual_topology(autojump_clock: object, lan: Lan) -> None:
    await refused(lan, lambda host: host.serve_client_server("talk", rid="s"), "remove rid", store=True)
    await starts(lan, lambda host: host.serve_client_server("talk", rid="s"))


@pytest.mark.contract("SA-15")
async def test_two_handlers_of_one_packet_are_named(autojump_clock: object, lan: Lan) -> None:
    def build(host: zl.Host) -> None:
        channel = host.serve_client_server("talk")

        @channel.on_send
        def first(message: Note) -> None: ...

        @channel.on_send
        def second(message: Note) -> None: ...

    await refused(lan, build, "first.*second")


@pytest.mark.contract("SA-16")
async def test_a_send_and_a_request_of_one_packet_are_two_handlers(autojump_clock: object, lan: Lan) -> None:
    def build(host: zl.Host) -> None:
        channel = host.serve_client_server("talk")

        @channel.on_send
        def first(message: Ask) -> None: ...

        @channel.on_request
        def second(message: Ask) -> Answer:
            return Answer(message.n, "n")

    await starts(lan, build)


async def test_nothing_can_be_registered_once_the_host_runs(autojump_clock: object, lan: Lan) -> None:
    host, _ = lan.host("n")
    channel = host.serve_client_server("talk")
    async with host.run():
        with pytest.raises(zl.InvalidOperationError):
            host.serve_client_server("more")
        with pytest.raises(zl.InvalidOperationError):
            host.use_client_server("more", servers=[SERVER])
        with pytest.raises(zl.InvalidOperationError):

            @channel.on_send
            def late(message: Note) -> None: ...


def settings(values: dict[str, Any]) -> zl.Settings:
    return zl.Settings.load(environ={}, overrides=values)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"client_server.other.weight": 1}, "'other', which this host does not register"),
        ({"client_server.served.servers": [SERVER]}, "does not use the channel"),
        ({"client_server.used.listen": "tcp://127.0.0.1:0"}, "does not serve the channel"),
        ({"client_server.served.max_message_bytes": 7}, "max_message_bytes"),
        ({"client_server.served.listen": "tcp://0.0.0.0:0"}, "advertise_host"),
        ({"client_server.used.servers": ["nonsense"]}, "not an endpoint"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(
    autojump_clock: object, lan: Lan, values: dict[str, Any], match: str
) -> None:
    host, _ = lan.host("n")
    host.serve_client_server("served")
    host.use_client_server("used", servers=[SERVER])
    with pytest.raises(zl.ConfigurationError, match=match):
        async with host.run(settings=settings(values)):
            raise AssertionError("it started")
    assert not [entry for entry in lan.network.log if entry[1] in ("listen", "dial")]


async def test_settings_come_over_what_code_says(autojump_clock: object, lan: Lan) -> None:
    host, _ = lan.host("n")
    channel = host.serve_client_server(CHANNEL, weight=5)
    host.use_client_server(CHANNEL, servers=["tcp://127.0.0.1:5999"])

    @channel.on_request
    def answer(message: Ask) -> Answer:
        return Answer(message.n, "n")

    given = settings(
        {
            f"client_server.{CHANNEL}.listen": "tcp://127.0.0.1:5601",
            f"client_server.{CHANNEL}.advertise_host": "localhost",
            f"client_server.{CHANNEL}.rid_prefix": "till",
            f"client_server.{CHANNEL}.weight": 9,
            f"client_server.{CHANNEL}.servers": ["tcp://127.0.0.1:5601"],
            f"client_server.{CHANNEL}.max_message_bytes": 4096,
            f"client_server.{CHANNEL}.default_request_timeout": 3,
        }
    )
    async with host.run(settings=given) as rt:
        await rt.wait_ready_target(CHANNEL)
        assert await rt.request_to_channel(CHANNEL, Ask(1)) == Answer(1, "n")
        status = rt.channel_status(CHANNEL)
        assert (status.weight, status.endpoint) == (9, "tcp://localhost:5601")
        assert (status.server_rid or "").startswith("till-")
        with pytest.raises(zl.InvalidOperationError, match="4096"):
            await rt.send_to_channel(CHANNEL, zl.RawMessage("Note", b"x" * 4096))
        assert rt._core.channels[CHANNEL].default_timeout_ms == 3000


async def test_each_server_has_a_listener_an_id_and_a_generation_of_its_own(autojump_clock: object, lan: Lan) -> None:
    host, _ = lan.host("n")
    host.mesh("m")
    host.serve_client_server("one")
    host.serve_client_server("two")
    async with host.run() as rt:
        ends = {rt.endpoint("m"), rt.channel_endpoint("one"), rt.channel_endpoint("two")}
        assert len(ends) == 3
        assert not any(end.endswith(":0") for end in ends)
        holders = list(rt._core.holders)
        assert len({holder.generation for holder in holders}) == 3  # type: ignore[attr-defined]
        assert len({holder.rid for holder in holders}) == 3  # type: ignore[attr-defined]


async def test_the_context_of_a_channel_s_message(autojump_clock: object, lan: Lan) -> None:
    lan.on_mesh = False
    async with lan.node("a", port=1, weight=100) as a, lan.node("z", peers=[1]) as z:
        await z.target()
        await z.rt.send_to_channel(CHANNEL, Note(1), metadata={"k": "v"})
        await z.rt.request_to_channel(CHANNEL, Ask(2))
        contexts = [context for _, context in a.got]
        for context in contexts:
            assert (context.mesh_name, context.channel_name, context.source_rid) == (None, CHANNEL, None)
        assert dict(contexts[0].metadata) == {"k": "v"}
        assert [context.correlation_id is None for context in contexts] == [True, False]
        with pytest.raises(zl.NotFoundError):
            await z.rt.request_to_channel(CHANNEL, zl.RawMessage("Nobody", b"\x80"))
        await z.rt.send_to_channel(CHANNEL, zl.RawMessage("Note", b"\xc1"))
        with pytest.raises(zl.ProtocolError):
            await z.rt.request_to_channel(CHANNEL, zl.RawMessage("Ask", b"\xc1"))
        assert a.telemetry.total("zlink.mesh_node.messages.dropped", surface="channel", mesh_name=CHANNEL) == 3
        assert z.is_ready("a")
