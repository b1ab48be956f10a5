"""How one creation ended, kept so that the same operation asked again gets the same answer (LO-231..233).

A msgpack map (ours), at most 1 MiB, written in the batch that ends the creation. It holds no correlation and no reply
route: those belong to the connection on which the answer is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from zlinkpy.errors import InvalidOperationError
from zlinkpy.location import keys
from zlinkpy.location.arguments import VALUE_BYTES
from zlinkpy.location.keys import ID_MAX_BYTES
from zlinkpy.location.rows import GENERATION_MAX, Fields, pack_row, unpack_row
from zlinkpy.location.store import Put, StoreCorruption
from zlinkpy.wire import CreateOutcome, FailureCode, TerminalResult

AFTERLIFE_MS = 300_000
"""How long a terminal outlives the deadline of its operation (LO-232)."""

_KINDS: Mapping[str, Literal["actor", "spot"]] = {"actor": "actor", "spot": "spot"}
_RESULTS = {int(each): each for each in TerminalResult}
_FAILURES = {int(each): each for each in FailureCode}
_OUTCOMES = {int(each): each for each in CreateOutcome}


@frozen
class Creation:
    """What an ok creation did, and to which incarnation."""

    outcome: CreateOutcome
    kind: Literal["actor", "spot"]
    object_id: str
    object_generation: int


@frozen
class CreationTerminal:
    """Raises ValueError unless: ok has a creation and no failure; not ok has neither creation nor reply; existing has
    no reply (LO-233).
    """

    result: TerminalResult
    failure: FailureCode = FailureCode.NONE
    creation: Creation | None = None
    reply: bytes | None = None

    def __attrs_post_init__(self) -> None:
        if self.result is TerminalResult.OK:
            if self.failure is not FailureCode.NONE or self.creation is None:
                raise ValueError("an ok creation says what was created and names no failure")
            if self.creation.outcome is CreateOutcome.EXISTING and self.reply is not None:
                raise ValueError("the creation of what exists has no reply")
        elif self.creation is not None or self.reply is not None:
            raise ValueError("a failed creation created nothing and has no reply")

    def encode(self) -> bytes:
        """Raises InvalidOperationError above 1 MiB (LO-232)."""
        creation = self.creation
        raw = pack_row(
            {
                "result": int(self.result),
                "failure": int(self.failure),
                "creation": None
                if creation is None
                else {
                    "outcome": int(creation.outcome),
                    "kind": creation.kind,
                    "id": creation.object_id,
                    "generation": creation.object_generation,
                },
                "reply": self.reply,
            }
        )
        if len(raw) > VALUE_BYTES:
            raise InvalidOperationError(
                f"the stored end of a creation is at most {VALUE_BYTES} bytes, not {len(raw)}; send a shorter reply"
            )
        return raw


def decode_terminal(raw: bytes) -> CreationTerminal:
    """Raises StoreCorruption for anything but one complete terminal."""
    fields = unpack_row(raw, "creation terminal")
    creation = fields.optional_child("creation")
    try:
        return CreationTerminal(
            _RESULTS[fields.number("result", 0, 2**31)],
            _FAILURES[fields.number("failure", 0, 2**31)],
            None if creation is None else _creation(creation),
            fields.optional_blob("reply", VALUE_BYTES),
        )
    except (KeyError, ValueError) as problem:
        raise StoreCorruption(f"creation terminal: {problem}") from None


def _creation(fields: Fields) -> Creation:
    return Creation(
        _OUTCOMES[fields.number("outcome", 0, 2**31)],
        fields.choice("kind", _KINDS),
        fields.text("id", ID_MAX_BYTES),
        fields.number("generation", 1, GENERATION_MAX),
    )


@frozen
class TerminalNote:
    """A terminal on its way into the store: whose operation it ends, and for how long it is kept."""

    source_rid: str
    source_lifecycle: int
    operation_id: bytes
    terminal: CreationTerminal
    remaining_ms: int
    """What is left of the operation's deadline when the batch is made."""

    @property
    def key(self) -> bytes:
        return keys.creation_terminal(self.source_rid, self.source_lifecycle, self.operation_id)

    @property
    def put(self) -> Put:
        return Put(self.key, self.terminal.encode(), max(0, self.remaining_ms) + AFTERLIFE_MS)
