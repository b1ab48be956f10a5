"""Waiting for many descriptors at once under trio.

trio waits for one descriptor per task. A task per connection costs memory and a task switch per wake-up, so where the
platform's selector is itself a descriptor (epoll, kqueue) all descriptors go into one selector and one task waits for
*that*. Elsewhere (`WatcherReadiness`) a small task per descriptor does the waiting.

Both report level-triggered: a descriptor that was reported and not serviced is reported again. Both can be woken by
`wake()`, which is rare, so that it may cost a system call.
"""

from __future__ import annotations

import select
import selectors
import socket
from typing import Generic, Protocol, TypeVar

import trio

KeyT = TypeVar("KeyT")


class Readiness(Protocol[KeyT]):
    """A set of descriptors, each with the key that `wait` reports for it."""

    def register(self, fd: int, key: KeyT) -> None: ...

    def unregister(self, fd: int) -> None: ...

    def wake(self) -> None:
        """Make the present or the next `wait` return."""

    async def wait(self) -> list[KeyT]:
        """Keys whose descriptor is readable; empty after a mere `wake`. Cancellation loses nothing."""

    def poll(self) -> list[KeyT]:
        """The same without waiting."""

    def close(self) -> None: ...


def make_readiness(nursery: trio.Nursery) -> Readiness[KeyT]:
    """The cheaper implementation the platform has; `nursery` is for the watcher tasks of the other."""
    if hasattr(select, "epoll"):
        return EpollReadiness()
    selector = selectors.DefaultSelector()
    if hasattr(selector, "fileno"):
        return SelectorReadiness(selector)
    selector.close()
    return WatcherReadiness(nursery)


class _Waker:
    """A descriptor that becomes readable on `wake`, so that a selector can be woken like a socket."""

    def __init__(self) -> None:
        self._sender, self._receiver = socket.socketpair()
        self._sender.setblocking(False)
        self._receiver.setblocking(False)
        self._woken = False

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._sender.send(b"\0")

    def clear(self) -> None:
        self._receiver.recv(16)
        self._woken = False

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


class EpollReadiness(Generic[KeyT]):
    """One epoll set that trio waits for. The selectors module does the same at three times the cost per wake-up."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fileno = self._epoll.fileno()
        self._keys: dict[int, KeyT] = {}
        self._waker = _Waker()
        self._waker_fd = self._waker.fileno()
        self._epoll.register(self._waker_fd, select.EPOLLIN)

    def register(self, fd: int, key: KeyT) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._keys[fd] = key

    def unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._keys[fd]

    def wake(self) -> None:
        self._waker.wake()

    async def wait(self) -> list[KeyT]:
        await trio.lowlevel.wait_readable(self._fileno)
        return self.poll()

    def poll(self) -> list[KeyT]:
        keys = self._keys
        readable = []
        for fd, _ in self._epoll.poll(0):
            if fd == self._waker_fd:
                self._waker.clear()
            elif fd in keys:
                readable.append(keys[fd])
        return readable

    def close(self) -> None:
        self._epoll.close()
        self._waker.close()


class SelectorReadiness(Generic[KeyT]):
    """One selector that trio waits for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._fileno: int = selector.fileno()  # type: ignore[attr-defined]
        self._waker = _Waker()
        selector.register(self._waker, selectors.EVENT_READ, None)

    def register(self, fd: int, key: KeyT) -> None:
        self._selector.register(fd, selectors.EVENT_READ, key)

    def unregister(self, fd: int) -> None:
        self._selector.unregister(fd)

    def wake(self) -> None:
        self._waker.wake()

    async def wait(self) -> list[KeyT]:
        await trio.lowlevel.wait_readable(self._fileno)
        return self.poll()

    def poll(self) -> list[KeyT]:
        keys: list[KeyT] = []
        for selected, _ in self._selector.select(0):
            if selected.data is None:
                self._waker.clear()
            else:
                keys.append(selected.data)
        return keys

    def close(self) -> None:
        self._selector.close()
        self._waker.close()


class WatcherReadiness(Generic[KeyT]):
    """One task per descriptor, for platforms whose selector is no descriptor."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._watchers: dict[int, trio.CancelScope] = {}
        self._readable: dict[int, KeyT] = {}
        self._rearm = trio.Event()
        self._something = trio.Event()

    def register(self, fd: int, key: KeyT) -> None:
        scope = trio.CancelScope()
        self._watchers[fd] = scope
        self._nursery.start_soon(self._watch, fd, key, scope)

    def unregister(self, fd: int) -> None:
        self._watchers.pop(fd).cancel()
        self._readable.pop(fd, None)
        # Ends a wait of the watcher now: the descriptor is closed in the same breath and its number used again.
        trio.lowlevel.notify_closing(fd)

    def wake(self) -> None:
        self._something.set()

    async def wait(self) -> list[KeyT]:
        self._let_watchers_look_again()
        await self._something.wait()
        return self.poll()

    def poll(self) -> list[KeyT]:
        self._something = trio.Event()
        keys = list(self._readable.values())
        self._readable.clear()
        self._let_watchers_look_again()
        return keys

    def _let_watchers_look_again(self) -> None:
        # A watcher that looks before the stage has serviced its socket reports it once too often, which is harmless.
        self._rearm.set()
        self._rearm = trio.Event()

    def close(self) -> None:
        for fd in list(self._watchers):
            self.unregister(fd)

    async def _watch(self, fd: int, key: KeyT, scope: trio.CancelScope) -> None:
        with scope:
            while not scope.cancel_called:
                try:
                    await trio.lowlevel.wait_readable(fd)
                except trio.ClosedResourceError:
                    return
                if self._watchers.get(fd) is not scope:
                    return
                self._readable[fd] = key
                self._something.set()
                await self._rearm.wait()
