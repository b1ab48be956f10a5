"""The exception tree."""

from __future__ import annotations

import pytest

from zlinkpy import errors
from zlinkpy.errors import ConfigurationError, ErrorKind, ProtocolError, ZlinkError, error_for_kind


@pytest.mark.contract("SA-248")
def test_the_kinds_and_their_numbers() -> None:
    assert {kind.name: int(kind) for kind in ErrorKind} == {
        "NOT_FOUND": 0,
        "ALREADY_EXISTS": 1,
        "TYPE_MISMATCH": 2,
        "NOT_CONFIGURED": 3,
        "REJECTED": 4,
        "UNAVAILABLE": 5,
        "DEADLINE_EXCEEDED": 6,
        "SHUTTING_DOWN": 7,
        "PROTOCOL_ERROR": 8,
        "INVALID_OPERATION": 9,
        "DATA_LOST": 10,
        "INTERNAL_FAILURE": 11,
    }


@pytest.mark.contract("SA-249")
@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_has_one_subclass_that_is_caught_by_name_and_as_the_base(kind: ErrorKind) -> None:
    name = "".join(part.capitalize() for part in kind.name.split("_"))
    cls = getattr(errors, name if name.endswith("Error") else f"{name}Error")
    error = error_for_kind(kind, "what happened", cause="why")
    assert type(error) is cls
    for caught in (cls, ZlinkError):
        with pytest.raises(caught):
            raise error
    assert error.kind is kind
    assert error.message == "what happened" == str(error)
    assert error.cause == "why"
    assert not [attribute for attribute in dir(error) if "retry" in attribute.lower()]


def test_a_configuration_error_is_an_invalid_operation() -> None:
    assert ConfigurationError("x").kind is ErrorKind.INVALID_OPERATION


def test_a_protocol_error_names_the_field() -> None:
    error = ProtocolError("is too long", field="body.corr")
    assert (str(error), error.field, error.problem) == ("body.corr: is too long", "body.corr", "is too long")
    assert str(ProtocolError("bad")) == "bad"
