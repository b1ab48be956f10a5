"""What a record has to satisfy beyond its form, said in one line each; the error names the field (LV [D7])."""

from __future__ import annotations

from zlinkpy.errors import ProtocolError
from zlinkpy.wire import RouteMeshAdmission


def require(condition: bool, problem: str, field: str) -> None:
    """Raise ProtocolError unless `condition` holds."""
    if not condition:
        raise ProtocolError(problem, field=field)


def route_mesh(admission: object) -> RouteMeshAdmission:
    """`admission` as that of a RouteMesh; raises ProtocolError when it is of another topology."""
    if not isinstance(admission, RouteMeshAdmission):
        raise ProtocolError("not a RouteMesh admission", field="body.admission")
    return admission
