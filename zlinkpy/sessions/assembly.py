"""placeholder"""

from typing import Any


class Parts:
    node_id: str
    store: Any
    inbox: Any
    idempotency: Any
    bus: Any
    journal: Any
    events: Any
    open: Any


def assemble(*a: Any, **k: Any) -> Parts: ...
