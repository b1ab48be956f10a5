"""What a host refuses before it opens anything (SA §A, without objects)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

import zlinkpy as zl
from tests.contract.host.hosts import CHANNEL, MESH, Answer, Ask, Lan, Note
from tests.location_hosts import Gate, every
from tests.puppet import until
from zlinkpy.wire import Update

Build = Callable[[zl.Host], Any]


async def build_and_run(host: zl.Host, build: Build) -> None:
    """Register and start what must not start."""
    build(host)
    async with host.run():
        raise AssertionError("it started")


async def refused(lan: Lan, build: Build, match: str, **options: Any) -> None:
    """Registering or starting raises, and nobody listens and no store was asked."""
    gate = Gate(lan.store)
    if options.pop("store", False):
        options["location_store"] = gate
    host, _ = lan.host("n", **options)
    with pytest.raises(zl.ConfigurationError, match=match):
        await build_and_run(host, build)
    assert not [entry for entry in lan.network.log if entry[1] in ("listen", "dial")]
    assert not gate.calls


async def starts(lan: Lan, build: Build, **options: Any) -> None:
    """The near miss: this one is fine."""
    host, _ = lan.host("n", **options)
    build(host)
    async with host.run() as rt:
        assert rt.status.is_ready


@pytest.mark.contract("SA-01")
async def test_a_mesh_name_is_registered_once(autojump_clock: object, lan: Lan) -> None:
    def build(host: zl.Host) -> None:
        host.mesh("world")
        host.mesh("world")

    await refused(lan, build, "'world' is registered twice")
    await starts(lan, lambda host: (host.mesh("world"), host.mesh("World")))


def on_two_meshes(host: zl.Host) -> None:
    host.mesh("one").serve_channel("talk")
    host.mesh("two").use_channel("talk")


def twice_as_client(host: zl.Host) -> None:
    mesh = host.mesh("one")
    mesh.use_channel("talk")
    mesh.use_channel("talk")


def twice_as_server(host: zl.Host) -> None:
    mesh = host.mesh("one")
    mesh.serve_channel("talk")
    mesh.serve_channel("talk", weight=0)


def client_and_server(host: zl.Host) -> None:
    mesh = host.mesh("one")
    mesh.serve_channel("talk")
    mesh.use_channel("talk")


@pytest.mark.contract("SA-02")
@pytest.mark.parametrize("build", [on_two_meshes, twice_as_client, twice_as_server, client_and_server])
async def test_a_channel_has_one_send_path_in_a_process(autojump_clock: object, lan: Lan, build: Build) -> None:
    await refused(lan, build, "'talk' is registered")


async def test_two_channels_on_two_meshes_are_fine(autojump_clock: object, lan: Lan) -> None:
    await starts(lan, lambda host: (host.mesh("one").serve_channel("talk"), host.mesh("two").use_channel("tell")))


@pytest.mark.contract("SA-04")
async def test_an_object_role_needs_a_store_and_none_is_made_up(autojump_clock: object, lan: Lan) -> None:
    await refused(lan, lambda host: host.mesh(MESH).object_client(), "set location_store")
    await starts(lan, lambda host: host.mesh(MESH).object_client(), location_store=lan.store)


def object_client_with_node_handler(host: zl.Host) -> None:
    mesh = host.mesh(MESH)
    mesh.object_client()

    @mesh.on_node_send
    async def note(message: Note) -> None: ...


def object_client_with_channel(host: zl.Host) -> None:
    mesh = host.mesh(MESH)
    mesh.object_client()
    mesh.serve_channel(CHANNEL)

    @mesh.on_channel_send(CHANNEL)
    async def note(message: Note) -> None: ...


@pytest.mark.contract("SA-07")
async def test_an_object_client_takes_no_node_direct_messages(autojump_clock: object, lan: Lan) -> None:
    await refused(lan, object_client_with_node_handler, "object client takes no node direct", store=True)
    await starts(lan, object_client_with_channel, location_store=lan.store)


def two_handlers(register: Callable[[zl.Mesh], Callable[[Any], Any]]) -> Build:
    def build(host: zl.Host) -> None:
        mesh = host.mesh(MESH)
        mesh.serve_channel(CHANNEL)

        @register(mesh)
        async def first(message: Note) -> None: ...

        @register(mesh)
        async def second(message: Note) -> None: ...

    return build


@pytest.mark.contract("SA-15")
@pytest.mark.parametrize(
    "register",
    [lambda mesh: mesh.on_node_send, lambda mesh: mesh.on_channel_send(CHANNEL)],
    ids=["node", "channel"],
)
async def test_two_handlers_of_one_key_are_both_named(
    autojump_clock: object, lan: Lan, register: Callable[[zl.Mesh], Callable[[Any], Any]]
) -> None:
    host, _ = lan.host("n")
    with pytest.raises(zl.ConfigurationError, match="first") as caught:
        await build_and_run(host, two_handlers(register))
    assert "second" in str(caught.value)
    assert "'Note'" in str(caught.value)
    assert not lan.network.log


@pytest.mark.contract("SA-15")
async def test_two_request_handlers_of_one_key_are_both_named(autojump_clock: object, lan: Lan) -> None:
    def build(host: zl.Host) -> None:
        mesh = host.mesh(MESH)

        @mesh.on_node_request
        async def first(message: Ask) -> Answer: ...  # type: ignore[empty-body]

        @mesh.on_node_request
        def second(message: Ask) -> Answer: ...  # type: ignore[empty-body]

    await refused(lan, build, "first.*second")


@zl.message("both.send")
class Sent:
    n: int


@zl.message("both.send")
class Asked(zl.Request[Answer]):
    n: int


@pytest.mark.contract("SA-16", "SA-131")
async def test_kind_and_owner_keep_one_packet_name_apart(autojump_clock: object, lan: Lan) -> None:
    """One packet name as send and request, node direct and on two channels of two meshes: each handler gets its own."""
    got: list[tuple[str, int]] = []
    host, _ = lan.host("n")
    mesh = host.mesh(MESH, rid="n")
    other = host.mesh("other", rid="n")

    def register(owner: str, send: Callable[[Any], Any], request: Callable[[Any], Any]) -> None:
        @send
        async def sent(message: Sent) -> None:
            got.append((f"{owner} send", message.n))

        @request
        async def asked(message: Asked) -> Answer:
            got.append((f"{owner} request", message.n))
            return Answer(message.n, owner)

    mesh.serve_channel("one")
    other.serve_channel("two")
    register("node", mesh.on_node_send, mesh.on_node_request)
    register("one", mesh.on_channel_send("one"), mesh.on_channel_request("one"))
    register("two", other.on_channel_send("two"), other.on_channel_request("two"))
    async with host.run() as rt:
        await rt.send_to_node(MESH, "n", Sent(1))
        assert (await rt.request_to_node(MESH, "n", Asked(2))).who == "node"
        await rt.send_to_channel("one", Sent(3))
        assert (await rt.request_to_channel("one", Asked(4))).who == "one"
        await rt.send_to_channel("two", Sent(5))
        assert (await rt.request_to_channel("two", Asked(6))).who == "two"
        with pytest.raises(zl.NotFoundError):
            await rt.request_to_node("other", "n", Asked(7))
    assert got == [
        ("node send", 1),
        ("node request", 2),
        ("one send", 3),
        ("one request", 4),
        ("two send", 5),
        ("two request", 6),
    ]


@pytest.mark.contract("SA-17")
async def test_a_handler_has_to_say_what_it_handles(autojump_clock: object, lan: Lan) -> None:
    async def no_hint(message) -> None: ...  # type: ignore[no-untyped-def]

    async def wrong_reply(message: Ask) -> Note: ...  # type: ignore[empty-body]

    await refused(lan, lambda host: host.mesh(MESH).on_node_send(no_hint), "no type hint")
    await refused(lan, lambda host: host.mesh(MESH).on_node_request(wrong_reply), "Ask is answered with Answer")


async def test_a_handler_of_a_channel_that_is_not_served_is_refused(autojump_clock: object, lan: Lan) -> None:
    def build(host: zl.Host) -> None:
        mesh = host.mesh(MESH)
        mesh.use_channel(CHANNEL)

        @mesh.on_channel_send(CHANNEL)
        async def note(message: Note) -> None: ...

    await refused(lan, build, "does not serve")


@pytest.mark.contract("SA-20")
@pytest.mark.parametrize("weight", [-1, 10_001, True, 1.5])
async def test_a_weight_out_of_range_stops_the_start(autojump_clock: object, lan: Lan, weight: Any) -> None:
    await refused(lan, lambda host: host.mesh(MESH).serve_channel(CHANNEL, weight=weight), "weight must be")
    await refused(lan, lambda host: host.mesh(MESH, placement_weight=weight), "weight must be")


@pytest.mark.contract("SA-20")
async def test_channel_weights_change_within_their_range_and_alone(autojump_clock: object, lan: Lan) -> None:
    async with lan.node("n", weight=100) as n:
        puppet = lan.puppet()
        pair = await puppet.connect(n.rt.endpoint(MESH))

        def told() -> tuple[dict[str, int], int]:
            last = pair.app.commands(Update)[-1].admission if pair.app.commands(Update) else pair.remote
            return dict(last.channels), last.ext.placement_weight

        assert told() == ({CHANNEL: 100}, 100)
        for wrong in (-1, 10_001):
            with pytest.raises(ValueError, match="0 to 10000"):
                n.rt.set_channel_weight(MESH, CHANNEL, wrong)
            await trio.sleep(1)
            assert n.rt.mesh_status(MESH).channel_weights == {CHANNEL: 100}
            assert not pair.app.commands(Update)
        for right in (0, 10_000):
            n.rt.set_channel_weight(MESH, CHANNEL, right)
            assert n.rt.mesh_status(MESH).channel_weights == {CHANNEL: right}
            await until(lambda expected=right: told() == ({CHANNEL: expected}, 100))
        with pytest.raises(zl.NotFoundError, match="does not serve"):
            n.rt.set_channel_weight(MESH, "other", 5)


@pytest.mark.contract("SA-20")
@pytest.mark.parametrize("weight", [0, 10_000])
async def test_both_ends_of_the_weight_range_are_accepted(autojump_clock: object, lan: Lan, weight: int) -> None:
    def build(host: zl.Host) -> None:
        host.mesh(MESH, placement_weight=weight).serve_channel(CHANNEL, weight=weight)

    await starts(lan, build)


@pytest.mark.contract("SA-22")
async def test_a_fixed_routing_id_is_for_manual_topology_without_objects(autojump_clock: object, lan: Lan) -> None:
    await refused(lan, lambda host: host.mesh(MESH, rid="n", rid_prefix="n"), "exclude each other")
    await refused(lan, lambda host: host.mesh(MESH, rid="n"), "remove rid", store=True)
    await refused(lan, lambda host: host.mesh(MESH, rid="n").object_client(), "object role", store=True)
    await starts(lan, lambda host: host.mesh(MESH, rid="n"))


@pytest.mark.contract("SA-23")
@pytest.mark.parametrize("prefix", ["", "a" * 65, "a b", "ä", "a/b", "a\n"])
async def test_a_prefix_that_cannot_be_part_of_an_id(autojump_clock: object, lan: Lan, prefix: str) -> None:
    await refused(lan, lambda host: host.mesh(MESH, rid_prefix=prefix), "1 to 64 characters")


@pytest.mark.contract("SA-23", "SA-29")
@pytest.mark.parametrize("prefix", ["a", "A-z_0.9", "a" * 64])
async def test_an_automatic_routing_id_is_new_at_every_start(autojump_clock: object, lan: Lan, prefix: str) -> None:
    seen = []
    for _ in range(2):
        host, _ = lan.host("n")
        host.mesh(MESH, rid_prefix=prefix)
        async with host.run() as rt:
            seen.append(rt.node_rid(MESH))
    assert seen[0] != seen[1]
    for rid in seen:
        head, tail = rid[: len(prefix)], rid[len(prefix) :]
        assert head == prefix
        assert tail[0] == "-"
        assert tail[1:] == tail[1:].lower()
        assert [len(part) for part in tail[1:].split("-")] == [8, 4, 4, 4, 12]
        assert tail[15] == "4"
        assert len(rid.encode()) <= 200


CHANGES: dict[str, Callable[[zl.Host, zl.Mesh], Any]] = {
    "mesh": lambda host, mesh: host.mesh("late"),
    "serve": lambda host, mesh: mesh.serve_channel("late"),
    "use": lambda host, mesh: mesh.use_channel("late"),
    "role": lambda host, mesh: mesh.object_client(),
    "node handler": lambda host, mesh: mesh.on_node_send(late),
    "channel handler": lambda host, mesh: mesh.on_channel_send(CHANNEL)(late),
}


async def late(message: Note) -> None:
    """A handler that comes too late."""


@pytest.mark.contract("SA-24")
@pytest.mark.parametrize("change", CHANGES)
async def test_registration_ends_with_the_start(autojump_clock: object, lan: Lan, change: str) -> None:
    host, _ = lan.host("n")
    mesh = host.mesh(MESH, rid="n")
    mesh.serve_channel(CHANNEL)
    async with AsyncExitStack() as stack:
        rt = await stack.enter_async_context(host.run())
        before = (host.meshes, dict(mesh.channels), list(mesh.handlers), mesh.object_role, rt.mesh_status(MESH))
        with pytest.raises(zl.InvalidOperationError, match="has started"):
            CHANGES[change](host, mesh)
        assert (host.meshes, mesh.channels, mesh.handlers, mesh.object_role, rt.mesh_status(MESH)) == before


@pytest.mark.contract("SA-24")
async def test_a_decorator_taken_before_the_start_does_not_work_after_it(autojump_clock: object, lan: Lan) -> None:
    host, _ = lan.host("n")
    mesh = host.mesh(MESH, rid="n")
    mesh.serve_channel(CHANNEL)
    decorate = mesh.on_channel_send(CHANNEL)
    async with host.run():
        with pytest.raises(zl.InvalidOperationError, match="has started"):
            decorate(late)
        assert not mesh.handlers


async def test_a_host_runs_once(autojump_clock: object, lan: Lan) -> None:
    host, _ = lan.host("n")
    host.mesh(MESH, rid="n")
    async with host.run():
        pass
    with pytest.raises(zl.InvalidOperationError, match="runs once"):
        async with host.run():
            raise AssertionError("it started again")


async def test_a_listener_that_cannot_bind_leaves_nothing_behind(autojump_clock: object, lan: Lan) -> None:
    gate = Gate(lan.store)
    gate.rule = every("pass")
    async with lan.node("a", port=1):
        host, _ = lan.host("b", location_store=gate)
        host.mesh(MESH, rid_prefix="b", listen=lan.endpoint(1))
        with pytest.raises(zl.ConfigurationError, match="taken"):
            async with host.run():
                raise AssertionError("it started")
    assert not await lan.rows()
    assert gate.closed == 1
