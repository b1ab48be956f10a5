"""What the router must not do, read from its source (SR §27)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import zlinkpy.sessions
from tests.contract.sessions.scenes import Scene, nodes, one_turn
from zlinkpy.sessions.core import RouterCore
from zlinkpy.sessions.errors import SessionNotHeldError, SignalPayloadError
from zlinkpy.sessions.events import TurnStarted
from zlinkpy.sessions.memory_bus import MemorySignalBus
from zlinkpy.sessions.renewal import LeaseRenewer
from zlinkpy.sessions.spi import SessionRecordStore
from zlinkpy.sessions.types import SessionSignal, SignalKind

PACKAGE = Path(zlinkpy.sessions.__file__).parent
PATHS = ("submission", "turn_pass", "turn", "drain_machine", "settlement", "endings", "core", "gate_machine")
"""Submit, drain, release and delete."""


def tree(name: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))


def calls(module: ast.AST, method: str) -> Iterator[str]:
    """What `method` is called on, as source text."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield ast.unparse(node.func.value)


def of_router() -> list[str]:
    """The modules that make the router, without stores and buses."""
    back_ends = ("memory_", "redis_", "mesh_bus", "split_bus", "backends", "signal_", "outbox", "interest")
    return [path.stem for path in sorted(PACKAGE.glob("*.py")) if not path.stem.startswith(back_ends)]


@pytest.mark.contract("SR-390")
def test_no_module_closes_a_handler() -> None:
    closed = {
        (name, owner) for name in of_router() for method in ("aclose", "close") for owner in calls(tree(name), method)
    }
    assert ("handle_cache", "entry.handle") in closed
    for name, owner in closed:
        assert "handler" not in owner.lower(), f"{name} closes {owner}"
        assert "registry" not in owner.lower(), f"{name} closes {owner}"
    assert not list(calls(tree("handlers"), "aclose"))


@pytest.mark.contract("SR-391", "SR-367")
def test_no_path_reads_a_status() -> None:
    for name in PATHS:
        module = tree(name)
        assert not list(calls(module, "status")), name
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and node.attr == "projection":
                # What is known of a session that is over is dropped; that reads nothing.
                assert name == "endings"
        assert set(calls(module, "forget")) <= {"self._status.projection"}
        used = [owner for method in ("get", "apply", "of", "received") for owner in calls(module, method)]
        assert not [owner for owner in used if "status" in owner or "projection" in owner], name


@pytest.mark.contract("SR-392")
def test_a_record_is_deleted_in_one_place() -> None:
    # Not only calls: a bound method that a list of steps holds deletes as well.
    deletes = [
        (path, ast.unparse(node.value))
        for path in of_router()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "delete"
    ]
    found = [(name, owner) for name, owner in deletes if name not in ("session_store", "router", "bystander")]
    assert found == [("endings", "core.store.records()")]
    assert [owner for name, owner in deletes if name == "router"] == ["self._endings"]
    assert [owner for name, owner in deletes if name == "bystander"] == ["self.router"]
    documented = inspect.getdoc(SessionRecordStore.delete) or ""
    assert "unsupported" in documented or "not supported" in documented


@pytest.mark.contract("SR-393")
async def test_a_node_that_does_not_hold_a_session_cannot_write_it(autojump_clock: trio.abc.Clock) -> None:
    scene = Scene()
    async with nodes(scene, "n1", "n2") as [one, two]:
        await one_turn(scene, two)
        before = await scene.stores.records.load("s")
        scene.log.clear()
        records = one._core.store.records()
        with pytest.raises(SessionNotHeldError):
            await records.commit("s", b"stolen", {}, turn_id="t")
        with pytest.raises(SessionNotHeldError):
            await records.delete("s")
        assert scene.calls("commit", "delete") == []
        assert await scene.stores.records.load("s") == before


@pytest.mark.contract("SR-394")
def test_a_lost_lease_is_told_in_a_plain_call() -> None:
    assert not inspect.iscoroutinefunction(RouterCore.lease_lost)
    assert list(inspect.signature(RouterCore.lease_lost).parameters) == ["self", "held"]


@pytest.mark.contract("SR-395", "SR-084")
async def test_a_typed_event_is_no_payload(autojump_clock: trio.abc.Clock) -> None:
    bus = MemorySignalBus()
    seen: list[SessionSignal] = []
    await bus.subscribe("s", seen.append)
    with pytest.raises(SignalPayloadError):
        await bus.publish(SessionSignal("s", SignalKind.EVENT, "n1", {"event": TurnStarted()}))
    await trio.sleep(0.1)
    assert seen == []


@pytest.mark.contract("SR-396")
def test_a_renewal_tick_is_given_a_slot_and_no_key() -> None:
    for tick in (LeaseRenewer.start, LeaseRenewer._renew_on_loop):
        parameters = list(inspect.signature(tick).parameters)
        assert parameters[:2] == ["self", "held"]
        assert not [name for name in parameters if "key" in name or "reserver" in name]
