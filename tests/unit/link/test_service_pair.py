"""The one connection of ClientServer: what it carries, what both ends agree on, what a backlog does (LV §5)."""

from __future__ import annotations

import attrs
import pytest

from zlinkpy.errors import ProtocolError
from zlinkpy.link import (
    NO_LIMIT,
    Expectation,
    FailureReason,
    RemoteFlow,
    RevisionGuard,
    ServicePair,
    Updated,
    check_service_admission,
    identity_change,
)
from zlinkpy.wire import (
    ChannelRequest,
    ChannelSend,
    ClientAdmission,
    FlowState,
    LivenessAck,
    LivenessProbe,
    PayloadHead,
    ReceiveFlow,
    RejectReason,
    Reply,
    RuntimeState,
    ServerAdmission,
    Update,
    encode,
)

from .harness import APP, SERVICE_ROLES, Link, Node, client_admission, own, ready_link, ready_node, server_admission

CLIENT, SERVER = 0, 1
HEAD = PayloadHead("hello")


def request(wire: Link, corr: int) -> None:
    wire.put(CLIENT, APP, encode(ChannelRequest(corr, 1000, "orders", HEAD), parts=[b"x"]))


def correlations(node: Node) -> list[int | str]:
    """What was read, in order: the correlation of a call, or the name of an infrastructure record."""
    return [getattr(record, "corr", type(record).__name__) for record in node.read]


@pytest.mark.contract("LV-59")
def test_one_connection_carries_requests_replies_probes_and_acks() -> None:
    wire = ready_link("ClientServer", latency=(0.01, 0.01))
    client, server = wire.nodes
    for second in range(1, 31):
        wire.run_until(second)
        request(wire, second)
        wire.put(SERVER, APP, encode(Reply(second, 0, 0, None, HEAD), parts=[b"y"]))
    wire.run_until(31.0)
    assert set(wire.connections) == {APP}
    assert [type(command) for command in server.handled] == [ChannelRequest] * 30
    assert [type(command) for command in client.handled] == [Reply] * 30
    for node in wire.nodes:
        assert len([record for record in node.read if isinstance(record, LivenessProbe)]) == 6
        assert len([record for record in node.read if isinstance(record, LivenessAck)]) == 6
        assert node.pair.ready


@pytest.mark.contract("LV-60")
def test_a_probe_and_its_ack_keep_their_place_among_the_messages() -> None:
    wire = ready_link("ClientServer")
    client, server = wire.nodes
    server.read.clear()
    wire.stall(CLIENT, APP)
    request(wire, 1)
    wire.run_until(5.0)
    request(wire, 2)
    wire.resume(CLIENT, APP)
    client.read.clear()
    wire.stall(SERVER, APP)
    wire.put(SERVER, APP, encode(Reply(1, 0, 0, None, HEAD), parts=[b"y"]))
    wire.run_until(5.0)
    wire.put(SERVER, APP, encode(Reply(2, 0, 0, None, HEAD), parts=[b"y"]))
    wire.resume(SERVER, APP)
    wire.run_until(5.0)
    assert correlations(server) == [1, "LivenessProbe", "LivenessAck", 2]
    assert correlations(client) == [1, "LivenessAck", 2]


def backlog() -> Link:
    """Ready at T = 0; at T+4 the server stops reading and the client's queue fills."""
    wire = ready_link("ClientServer")
    wire.run_until(4.0)
    wire.stall(CLIENT, APP)
    for corr in range(1, 1001):
        request(wire, corr)
    return wire


@pytest.mark.contract("LV-61")
def test_a_probe_waits_behind_a_backlog_and_nothing_extends_the_deadline() -> None:
    wire = backlog()
    client = wire.nodes[CLIENT]
    wire.run_until(14.999)
    assert [at for at, _ in client.probes] == [5.0, 10.0]
    assert not any(isinstance(record, LivenessProbe) for record in wire.nodes[SERVER].read)
    assert client.pair.ready
    wire.run_until(15.0)
    assert client.end.failure.reason is FailureReason.PEER_DEADLINE
    assert client.end.failure.at == 15.0


@pytest.mark.contract("LV-62")
def test_a_paused_peer_that_answers_no_probe_expires_as_any_other() -> None:
    wire = backlog()
    client = wire.nodes[CLIENT]
    wire.put(SERVER, APP, encode(ReceiveFlow(FlowState.PAUSED)))
    wire.run_until(4.0)
    assert client.pair.remote_flow is FlowState.PAUSED
    assert client.actions(RemoteFlow)[-1] == RemoteFlow(FlowState.PAUSED)
    assert client.pair.ready
    assert client.pair.liveness.deadline == 15.0
    wire.run_until(15.0)
    assert [at for at, _ in client.probes] == [5.0, 10.0]
    assert client.end.failure.reason is FailureReason.PEER_DEADLINE
    assert client.end.failure.at == 15.0


@pytest.mark.contract("LV-63")
def test_an_ack_from_behind_the_backlog_counts_when_it_comes_in_time() -> None:
    wire = backlog()
    client = wire.nodes[CLIENT]
    wire.connections[APP].latency = [0.0, 1.0]
    wire.run_until(12.0)
    wire.resume(CLIENT, APP)
    wire.run_until(12.999)
    assert client.pair.liveness.deadline == 15.0
    wire.run_until(13.0)
    assert client.pair.liveness.deadline == 28.0
    assert client.pair.ready


# -- what both ends agree on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", SERVICE_ROLES)
def test_the_smaller_limit_is_in_force_and_the_largest_number_is_none(role: str) -> None:
    other = {"client": "server", "server": "client"}[role]

    def limits(local: int, remote: int) -> tuple[int | None, int | None]:
        node = ready_node(role, local=own(role, limit=local), peer=own(other, "node-p", limit=remote))
        return node.pair.send_limit, node.pair.receive_limit

    assert NO_LIMIT == 2**32 - 1
    assert limits(1000, 2000) == (1000, 1000)
    assert limits(2000, 1000) == (1000, 2000)
    assert limits(NO_LIMIT, 1000) == (1000, None)
    assert limits(1000, NO_LIMIT) == (1000, 1000)
    assert limits(NO_LIMIT, NO_LIMIT) == (None, None)
    assert Node(role, local=own(role, limit=77)).pair.send_limit == 77


def test_a_client_sees_the_server_and_a_server_sees_no_target() -> None:
    client, server = ready_node("client"), ready_node("server")
    assert client.pair.server == client.peer
    assert client.pair.identity == ("node-p", 7)
    assert client.pair.selectable
    assert (server.pair.server, server.pair.identity, server.pair.selectable) == (None, None, False)
    assert isinstance(server.pair.remote, ClientAdmission)
    assert repr(client.pair) == "<ServicePair client node-p ready>"
    assert repr(server.pair) == "<ServicePair server ready>"


def test_a_draining_server_stays_ready_for_what_it_accepted() -> None:
    node = ready_node("client")
    draining = server_admission("node-p", revision=2, state=RuntimeState.DRAINING)
    assert node.receive(APP, Update(draining), 1.0) == [Updated(draining)]
    assert node.pair.ready
    assert not node.pair.selectable
    assert node.deliver(APP, encode(Reply(7, 0, 0, None, HEAD), parts=[b"y"]), 2.0) == []
    assert len(node.handled) == 1


def test_a_client_never_announces_anything() -> None:
    node = ready_node("client")
    assert node.take(node.pair.announce(1.0), 1.0) == []


@pytest.mark.parametrize(
    ("role", "record"),
    [("client", ChannelSend("orders", HEAD)), ("server", Reply(1, 0, 0, None, HEAD))],
    ids=["send to a client", "reply to a server"],
)
def test_a_record_that_travels_the_wrong_way_is_a_violation(role: str, record: object) -> None:
    node = ready_node(role)
    node.deliver(APP, encode(record, parts=[b"x"]), 1.0)
    assert node.end.failure.reason is FailureReason.PROTOCOL_ERROR
    assert node.handled == []


# -- checks ------------------------------------------------------------------------------------------------------------

COMPLETE = Expectation(rid="node-p", security_identity="key-of-node-p", generation=7, revision=2)
# Each row breaks one check; a server that breaks several is refused for the first.
BREAKS = [
    ({"channel": "other"}, RejectReason.CHANNEL_MISMATCH),
    ({"rid": "node-x", "security": "key-of-node-p"}, RejectReason.IDENTITY_MISMATCH),
    ({"security": "another key"}, RejectReason.SECURITY_IDENTITY_MISMATCH),
    ({"generation": 8}, RejectReason.LIFECYCLE_GENERATION_STALE),
    ({"revision": 1}, RejectReason.DESCRIPTOR_REVISION_STALE),
    ({"endpoint": "tcp://0.0.0.0:5501"}, RejectReason.INVALID_DESCRIPTOR),
]


@pytest.mark.parametrize("first", range(len(BREAKS)), ids=[reason.name for _, reason in BREAKS])
def test_the_first_failing_check_of_a_server_names_the_reason(first: int) -> None:
    local = client_admission("node-n")
    good: dict[str, object] = {"rid": "node-p", "revision": 2}
    changes = dict(good)
    for broken, _ in BREAKS[first:]:
        changes |= broken
    for each in (changes, good | BREAKS[first][0]):
        remote = server_admission(**each)  # type: ignore[arg-type]
        assert check_service_admission(local, remote, COMPLETE) is BREAKS[first][1]
    assert check_service_admission(local, server_admission(**good), COMPLETE) is None  # type: ignore[arg-type]
    assert check_service_admission(local, server_admission("node-p", endpoint="mem://p"), None) is None


def test_a_server_checks_channel_key_and_itself_in_this_order() -> None:
    key = Expectation(security_identity="key-of-node-p")
    leaving = server_admission(state=RuntimeState.DRAINING)
    serving = server_admission()

    def verdict(local: ServerAdmission, **changes: str) -> RejectReason | None:
        return check_service_admission(local, client_admission("node-p", **changes), key)  # type: ignore[arg-type]

    assert verdict(leaving, channel="other", security="x") is RejectReason.CHANNEL_MISMATCH
    assert verdict(leaving, security="x") is RejectReason.SECURITY_IDENTITY_MISMATCH
    assert verdict(leaving) is RejectReason.RUNTIME_NOT_SERVING
    assert verdict(serving) is None
    # What only a server has cannot be expected of a client.
    everything = attrs.evolve(COMPLETE, rid="node-x", generation=99, revision=9)
    assert check_service_admission(serving, client_admission("node-p"), everything) is None


def test_every_element_of_a_service_admission_is_fixed_or_mutable() -> None:
    """An element added to a record has to be placed in one of the two sets, or a repetition could change it unseen."""
    server = {
        "channel_name": "other",
        "server_rid": "node-x",
        "lifecycle_generation": 8,
        "weight": 1,
        "runtime_state": RuntimeState.DRAINING,
        "security_identity": "x",
        "max_message_bytes": 9,
        "advertised_endpoint": "tcp://127.0.0.1:9",
    }
    client = {"channel_name": "other", "security_identity": "x", "max_message_bytes": 9}
    assert {field.name for field in attrs.fields(ServerAdmission)} == {*server, "descriptor_revision"}
    assert {field.name for field in attrs.fields(ClientAdmission)} == set(client)
    for current, changes in ((server_admission("node-p"), server), (client_admission("node-p"), client)):
        for name, value in changes.items():
            head, *rest = name.split("_")
            field = head + "".join(part.capitalize() for part in rest)
            guard: RevisionGuard[ServerAdmission | ClientAdmission] = RevisionGuard(current)
            with pytest.raises(ProtocolError) as caught:
                guard.offer(attrs.evolve(current, **{name: value}))
            assert caught.value.field == f"body.admission.{field}"
            assert guard.current == current


def test_a_server_may_change_weight_and_state_under_a_higher_revision() -> None:
    guard = RevisionGuard(server_admission("node-p"))
    newer = server_admission("node-p", revision=2, weight=0, state=RuntimeState.DRAINING)
    assert guard.offer(newer) == "newer"
    assert guard.offer(newer) == "same"
    assert guard.current == newer
    with pytest.raises(ProtocolError, match="revision 1 after 2"):
        guard.offer(server_admission("node-p"))


def test_an_identity_change_names_its_element() -> None:
    current = server_admission("node-p")
    for name, value, reject, field in (
        ("server_rid", "node-x", RejectReason.IDENTITY_MISMATCH, "serverRid"),
        ("security_identity", "x", RejectReason.SECURITY_IDENTITY_MISMATCH, "securityIdentity"),
        ("lifecycle_generation", 8, RejectReason.LIFECYCLE_GENERATION_STALE, "lifecycleGeneration"),
    ):
        change = identity_change(current, attrs.evolve(current, **{name: value}))
        assert change is not None
        assert (change.reject, change.field) == (reject, f"body.admission.{field}")
    assert identity_change(current, server_admission("node-p", revision=9, weight=1)) is None


def test_the_machine_is_built_for_either_end() -> None:
    assert {type(Node(role).pair) for role in SERVICE_ROLES} == {ServicePair}
