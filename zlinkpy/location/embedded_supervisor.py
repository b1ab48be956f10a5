"""The process that keeps one embedded server alive exactly as long as somebody uses it.

Run as a file, with the standard library only, so that it starts fast and stays small:
``python embedded_supervisor.py DIRECTORY -- SERVER COMMAND``. It leaves its starter's session, starts the server as
its child, tells the starter when the server answers, and then waits for the *exclusive* lock on ``users.lock``. Every
user holds that lock shared, and the kernel drops it however a user ends. So the lock is granted when the last user is
gone, killed or not; then the server is stopped and its data removed.

A server that dies alone is started again with the data of its append-only file. If the supervisor itself is killed,
the kernel kills the server with it (Linux), and the next user that finds nobody behind the socket starts both anew.

Rejected: letting the last user stop the server. A killed user stops nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

USERS_LOCK = "users.lock"
SUPERVISOR_LOCK = "supervisor.lock"
RESTARTS = 20
READY_TRIES = 1000
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Fork; the parent ends when the server answers (0) or cannot be started (1)."""
    directory, _, *command = arguments
    os.chdir(directory)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) == b"+" else 1
    os.close(reader)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    supervise(command, writer)
    return 0


def supervise(command: list[str], ready: int) -> None:
    """Hold the supervisor's lock, keep the server running, stop it after the last user."""
    own = os.open(SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # there is one already; the starter looks for its server
        return
    unused = threading.Event()
    server = start(command)

    def leave(*_: object) -> None:
        unused.set()
        server.terminate()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    if not wait_until_ready(server, command):
        server.kill()
        server.wait()
        return
    os.write(ready, b"+")
    os.close(ready)

    def watch() -> None:
        users = os.open(USERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(users, fcntl.LOCK_EX)  # kept until this process ends: who comes now waits for it
        unused.set()
        end(server)

    threading.Thread(target=watch, daemon=True).start()
    for _ in range(RESTARTS):
        server.wait()
        if unused.is_set():
            break
        server = start(command)
        if unused.is_set():
            break
    end(server)
    if unused.is_set():
        shutil.rmtree(option(command, "--dir"), ignore_errors=True)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the server as a child that dies with this process."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def die_with_parent() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    os.makedirs(option(command, "--dir"), mode=0o700, exist_ok=True)
    return subprocess.Popen(command, preexec_fn=die_with_parent)


def wait_until_ready(server: subprocess.Popen[bytes], command: list[str]) -> bool:
    """True when the server answers, False when it ended."""
    path = os.path.normpath(os.path.join(option(command, "--dir"), option(command, "--unixsocket")))
    pause = threading.Event()
    for _ in range(READY_TRIES):
        if answers(path):
            return True
        if server.poll() is not None:
            return False
        pause.wait(_POLL_SECONDS)
    return False


def answers(path: str) -> bool:
    """True when a server behind the socket answers PING, or asks for credentials; not while it loads its data."""
    return ask(path, b"PING").startswith((b"+PONG", b"-NOAUTH"))


def ask(path: str, command: bytes) -> bytes:
    """The beginning of the answer to one inline command; empty when there is nobody or the server hangs up."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
            probe.sendall(command + b"\r\n")
            return probe.recv(64)
        except OSError:
            return b""


def end(server: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> None:
    """Stop with the signal `number`, also when it is suspended; then by force."""
    server.send_signal(number)
    server.send_signal(signal.SIGCONT)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def option(command: list[str], name: str) -> str:
    """The value of a server option."""
    return command[command.index(name) + 1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
