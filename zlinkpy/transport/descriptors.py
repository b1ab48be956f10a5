"""Accepted sockets as libzmq shows them: file descriptors that are its own, and numbers that are soon used again."""

from __future__ import annotations

import os
import socket as network


def socket_identity(fd: int) -> tuple[object, int] | None:
    """What tells the socket behind `fd` from any other that gets the number later. None: it is gone already."""
    duplicate = _duplicate(fd)
    if duplicate is None:
        return None
    with duplicate:
        return _identity_of(duplicate)


def shut_down(fd: int, identity: tuple[object, int] | None) -> None:
    """End the connection behind `fd` if it is still the one that had `identity`."""
    duplicate = _duplicate(fd)
    if duplicate is None:
        return
    with duplicate:
        if identity is not None and _identity_of(duplicate) == identity:
            try:
                duplicate.shutdown(network.SHUT_RDWR)
            except OSError:
                # The peer was faster; the disconnect is on its way.
                return


def _duplicate(fd: int) -> network.socket | None:
    try:
        number = os.dup(fd)
    except OSError:
        return None
    try:
        return network.socket(fileno=number)
    except OSError:
        # The number means a file or a pipe by now.
        os.close(number)
        return None


def _identity_of(duplicate: network.socket) -> tuple[object, int] | None:
    try:
        # The peer's address says nothing on ipc, the inode nothing on some platforms.
        return duplicate.getpeername(), os.fstat(duplicate.fileno()).st_ino
    except OSError:
        return None
