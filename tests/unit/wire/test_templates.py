"""Templates give what the encoder gives, for every number (wire.md §2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlinkpy.wire import ChannelRequest, NodeRequest, PayloadHead, Reply, encode, reply_template, request_template

HEAD = PayloadHead("Echo", "application/msgpack")
CORRS = st.one_of(
    st.sampled_from([1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1]), st.integers(1, 2**63 - 1)
)


@pytest.mark.contract("LV-177")
@given(CORRS, st.integers(1, 2**31 - 1))
def test_a_filled_request_template_is_the_encoded_request(corr: int, ms: int) -> None:
    for prototype, command in (
        (ChannelRequest(1, 1, "game", HEAD), ChannelRequest(corr, ms, "game", HEAD)),
        (NodeRequest(1, 1, HEAD), NodeRequest(corr, ms, HEAD)),
    ):
        assert request_template(prototype)(corr, ms) == encode(command, parts=[b""])[0]


@pytest.mark.contract("LV-177")
@given(CORRS)
def test_a_filled_reply_template_is_the_encoded_reply(corr: int) -> None:
    assert reply_template(HEAD)(corr) == encode(Reply(corr, 0, 0, None, HEAD), parts=[b""])[0]
    assert reply_template(None)(corr) == encode(Reply(corr, 0, 0, None, None))[0]


def test_a_prototype_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match="packet"):
        reply_template(PayloadHead("", "application/msgpack"))
