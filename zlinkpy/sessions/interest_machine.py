"""Who wants the events of which sessions, between two nodes of a mesh. Pure.

On the wire an *interest* is ``[mode u8, [session id…]]``, at most `IDS_PER_INTEREST` ids, and is confirmed. Modes: 0
not any more, 1 from now on, 2 start over: forget what I said before, these from now on, and say yours again (the first
word of a bus on a connection; the other side cannot know otherwise that a bus was closed and another opened on it).

What a node keeps of one peer has two halves.

`Announcements`: what this node has said and still has to say.

    state of an id   event            next
    unsaid           wanted           due(on)
    said             unwanted         due(off)
    due              wanted back      as before it was due
    due              next()           under way
    under way        confirmed        said / unsaid
    under way        failed           due again, unless something newer is due; *unsure* until it was confirmed: the
                                      peer may hold it or not, so its contrary has to be said, too
    any              restart          due(on) if wanted, else unsaid

`Interests`: what the peer has said. It is bounded: a peer that names more than `IDS_KEPT` ids is sent everything from
then on, which is never wrong, only dearer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgpack
from attrs import frozen

from zlinkpy.errors import ProtocolError

IDS_PER_INTEREST: Final = 1024
IDS_KEPT: Final = 65_536
OFF: Final = 0
ON: Final = 1
START_OVER: Final = 2
_ID_BYTES: Final = 512


@frozen
class Interest:
    """One request of the kind."""

    mode: int
    ids: tuple[str, ...]

    def encode(self) -> bytes:
        """As it travels."""
        data: bytes = msgpack.packb([self.mode, list(self.ids)])
        return data

    @classmethod
    def decode(cls, data: bytes) -> Interest:
        """Read one. Raises ProtocolError. Fields that a newer version adds behind these are ignored."""
        try:
            value = msgpack.unpackb(data, max_array_len=IDS_PER_INTEREST, max_str_len=_ID_BYTES)
        except (ValueError, msgpack.exceptions.UnpackException, RecursionError):
            raise ProtocolError("does not decode", field="interest") from None
        if type(value) is not list or len(value) < 2:
            raise ProtocolError("is no list of two", field="interest")
        mode, ids = value[:2]
        if type(mode) is not int or mode not in (OFF, ON, START_OVER):
            raise ProtocolError(f"{str(mode)[:20]} is no mode", field="interest.mode")
        if type(ids) is not list or not all(type(each) is str and each for each in ids):
            raise ProtocolError("are no session ids", field="interest.ids")
        return cls(mode, tuple(ids))


class Announcements:
    """What one peer has to be told of this node's interests."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._said: set[str] = set()
        self._unsure: set[str] = set()
        self._due: dict[str, bool] = dict.fromkeys(wanted, True)
        self._under_way: Interest | None = None
        self._begun = False

    def change(self, session_id: str, *, on: bool) -> None:
        """This node wants the session's events, or does not any more."""
        if self._expected(session_id) is on:
            self._due.pop(session_id, None)
        else:
            self._due[session_id] = on

    def _expected(self, session_id: str) -> bool | None:
        """What the peer will hold once what is under way was confirmed; None: it cannot be known."""
        moving = self._under_way
        if moving is not None and session_id in moving.ids:
            return moving.mode != OFF
        return None if session_id in self._unsure else session_id in self._said

    def knows(self, session_id: str) -> bool:
        """True when the peer has confirmed that this node wants the session's events."""
        return session_id in self._said and session_id not in self._due and session_id not in self._unsure

    def next(self) -> Interest | None:
        """What to say next, which is then under way; None while something is, or when all was said."""
        if self._under_way is not None or (self._begun and not self._due):
            return None
        mode = START_OVER
        if self._begun:
            mode = ON if next(iter(self._due.values())) else OFF
        chosen = tuple(key for key, on in self._due.items() if on is (mode != OFF))[:IDS_PER_INTEREST]
        for session_id in chosen:
            del self._due[session_id]
        self._under_way = Interest(mode, chosen)
        return self._under_way

    def confirmed(self) -> None:
        """The peer has taken what was under way."""
        moving, self._under_way = self._under_way, None
        assert moving is not None
        if moving.mode == START_OVER:
            self._begun = True
        self._unsure.difference_update(moving.ids)
        if moving.mode == OFF:
            self._said.difference_update(moving.ids)
        else:
            self._said.update(moving.ids)

    def failed(self) -> None:
        """No answer, or a refusal. What was under way is said again: saying it twice changes nothing."""
        moving, self._under_way = self._under_way, None
        assert moving is not None
        self._due = {each: moving.mode != OFF for each in moving.ids if each not in self._due} | self._due
        self._unsure.update(moving.ids)

    def restart(self, wanted: Iterable[str]) -> None:
        """The peer has started over: it knows nothing of what was said."""
        self._said.clear()
        self._unsure.clear()
        self._due = dict.fromkeys(wanted, True)


class Interests:
    """What one peer wants."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self.everything = False

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, session_id: object) -> bool:
        return self.everything or session_id in self._ids

    def take(self, interest: Interest) -> bool:
        """The peer said this. True: it starts over and wants to hear this node's interests again."""
        if interest.mode == OFF:
            self._ids.difference_update(interest.ids)
            return False
        if interest.mode == START_OVER:
            self._ids.clear()
            self.everything = False
        self._ids.update(interest.ids)
        if len(self._ids) > IDS_KEPT:
            self.everything = True
            self._ids.clear()
        return interest.mode == START_OVER
