"""Listener identity and node ids (wire.md §11)."""

from __future__ import annotations

import re

import pytest

from zlinkpy.entropy import SystemEntropy
from zlinkpy.errors import ConfigurationError
from zlinkpy.mesh.identity import (
    automatic_rid,
    check_fixed_rid,
    check_peer_endpoint,
    check_prefix,
    plan_listener,
)


@pytest.mark.parametrize(
    "listen", ["tcp://0.0.0.0:5501", "tcp://[::]:5501", "tcp://*:5501", "tcp://[0:0:0:0:0:0:0:0]:0"]
)
def test_a_wildcard_bind_needs_an_advertised_host(listen: str) -> None:
    with pytest.raises(ConfigurationError, match=r"mesh\.play\.advertise_host"):
        plan_listener(listen, None, "mesh.play")
    plan = plan_listener(listen, "node1.example", "mesh.play")
    assert plan.advertised("tcp://0.0.0.0:6001") == "tcp://node1.example:6001"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", "", "tcp://x", "a/b"])
def test_what_nobody_can_dial_is_not_advertised(host: str) -> None:
    with pytest.raises(ConfigurationError, match="advertise_host"):
        plan_listener("tcp://127.0.0.1:0", host, "mesh.play")


def test_the_advertised_endpoint_has_the_actual_port_and_defaults_to_the_bind_host() -> None:
    assert plan_listener("tcp://127.0.0.1:0", None, "m").advertised("tcp://127.0.0.1:43211") == "tcp://127.0.0.1:43211"
    assert plan_listener("tcp://:0", None, "m").bind.host == "127.0.0.1", "no host means loopback, not every interface"
    assert plan_listener("tcp://[::1]:0", None, "m").advertised("tcp://[::1]:43211") == "tcp://[::1]:43211"


@pytest.mark.parametrize(
    "text", ["5501", "127.0.0.1:5501", "tcp://host", "tcp://host:port", "tcp://h:70000", "udp://h:1"]
)
def test_a_malformed_endpoint_names_the_place_and_the_form(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"mesh\.play\.listen"):
        plan_listener(text, None, "mesh.play")


@pytest.mark.parametrize("text", ["tcp://0.0.0.0:5501", "tcp://host:0", "tcp://*:1"])
def test_a_manual_peer_must_be_dialable(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"peers.*cannot be dialled"):
        check_peer_endpoint(text, "mesh.play.peers")


@pytest.mark.contract("SA-23", "LO-147")
@pytest.mark.parametrize("prefix", ["", "a" * 65, "a b", "a/b", "ä", "a\n"])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="rid_prefix"):
        check_prefix(prefix, "mesh.play.rid_prefix")


@pytest.mark.contract("SA-29", "LO-147")
def test_an_automatic_rid_is_prefix_and_uuid4_and_new_each_time() -> None:
    entropy = SystemEntropy()
    uuid4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    one, two = (automatic_rid(check_prefix("A.b_c-9" * 9, "p"), entropy) for _ in range(2))
    assert re.fullmatch(r"(A\.b_c-9){9}-" + uuid4, one)
    assert one != two
    assert len(one.encode()) <= 200


@pytest.mark.parametrize("rid", ["", "x" * 201, "é" * 101, "a\0b", "\ud800"])
def test_a_bad_fixed_rid_is_refused(rid: str) -> None:
    with pytest.raises(ConfigurationError, match=r"mesh\.m\.rid"):
        check_fixed_rid(rid, "mesh.m.rid")
