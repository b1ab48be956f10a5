"""What a record has to satisfy beyond its form, said in one line each; the error names the field (LV [D7])."""

from __future__ import annotations

from typing import TypeVar

from zlinkpy.errors import ProtocolError

T = TypeVar("T")


def require(condition: bool, problem: str, field: str) -> None:
    """Raise ProtocolError unless `condition` holds."""
    if not condition:
        raise ProtocolError(problem, field=field)


def admission_of(kind: type[T], admission: object, name: str) -> T:
    """`admission`, which has to be of `kind`; raises ProtocolError when it is of another topology or role."""
    if not isinstance(admission, kind):
        raise ProtocolError(f"not {name}", field="body.admission")
    return admission
