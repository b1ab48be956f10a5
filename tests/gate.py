"""What stands between a client and a Redis server in tests: a proxy that misbehaves on purpose, and a scripted server.

Both speak real sockets and run on plain threads, because the client under test blocks on worker threads of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Command = list[bytes]
Match = Callable[[Command], bool]


def is_script_call(command: Command) -> bool:
    """EVAL or EVALSHA: the calls that carry rows."""
    return command[0].upper() in (b"EVAL", b"EVALSHA")


class CommandReader:
    """Cuts a client's byte stream into commands (RESP arrays of bulk strings)."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def __iter__(self) -> Iterator[tuple[Command, bytes]]:
        while True:
            try:
                command = self._next()
            except (OSError, ValueError):
                return
            if command is None:
                return
            yield command

    def _next(self) -> tuple[Command, bytes] | None:
        head = self._file.readline()
        if not head:
            return None
        raw, words = [head], []
        for _ in range(int(head[1:])):
            size = self._file.readline()
            body = self._file.read(int(size[1:]) + 2)
            raw += [size, body]
            words.append(body[:-2])
        return words, b"".join(raw)


class _Listener:
    """Accepts on a Unix socket in a short directory of its own, or on a TCP port; a thread per connection."""

    def __init__(self, *, tcp: bool = False) -> None:
        self._directory = tempfile.mkdtemp(prefix="zl-gate-")
        self._tcp = tcp
        self.path = os.path.join(self._directory, "s")
        self.port = 0
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.commands: list[Command] = []
        """Every command a client sent, handshakes included."""
        self.listen()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self._tcp else f"unix://{self.path}"

    @property
    def script_calls(self) -> int:
        """How many EVAL and EVALSHA arrived."""
        return sum(is_script_call(command) for command in self.commands)

    def listen(self) -> None:
        if self._tcp:
            listener = socket.create_server(("127.0.0.1", self.port))
            self.port = listener.getsockname()[1]
        else:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(self.path)
            listener.listen(64)
        self._listener = listener
        self._start(self._accept, listener)

    def refuse(self) -> None:
        """Connections are refused from now on; the open ones are cut."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            Path(self.path).unlink(missing_ok=True)
        self.cut()

    def cut(self) -> None:
        """Close every open connection."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.refuse()
        for thread in self._threads:
            thread.join(5)
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._open.add(connection)
            self._start(self._run, connection)

    def _run(self, connection: socket.socket) -> None:
        """Serve one connection and close it, whatever happens."""
        reader = CommandReader(connection)
        try:
            self._serve(connection, reader)
        finally:
            reader.close()
            self._finish(connection)

    def _finish(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _serve(self, connection: socket.socket, reader: CommandReader) -> None:
        raise NotImplementedError


class Gate(_Listener):
    """Forwards to a server's Unix socket until told otherwise."""

    def __init__(self, upstream: str, *, tcp: bool = False) -> None:
        self._upstream = upstream
        self._swallowing: list[tuple[Match, bool]] = []
        self._held: Match | None = None
        self._released = threading.Event()
        self._released.set()
        self.swallowed = threading.Event()
        """Set when an answer was swallowed: the server has executed the command."""
        self.holding = threading.Event()
        """Set when a command waits at the gate."""
        super().__init__(tcp=tcp)

    def swallow(self, *, cut: bool = False, match: Match = is_script_call, times: int = 1) -> None:
        """Let the next matching command through, but not its answer; then hang, or cut the connection."""
        self.swallowed.clear()
        self._swallowing += [(match, cut)] * times

    def hold(self, match: Match = is_script_call) -> None:
        """Matching commands wait here until `release`; everything else passes."""
        self.holding.clear()
        self._released.clear()
        self._held = match

    def release(self) -> None:
        self._held = None
        self._released.set()

    def heal(self) -> None:
        """Forward everything again."""
        self._swallowing.clear()
        self.release()
        if self._listener is None:
            self.listen()

    def close(self) -> None:
        self.release()
        super().close()

    def _serve(self, connection: socket.socket, reader: CommandReader) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as upstream:
            try:
                upstream.connect(self._upstream)
            except OSError:
                return
            state = {"swallow": False, "cut": False}
            answers = threading.Thread(target=self._answers, args=(upstream, connection, state), daemon=True)
            answers.start()
            with contextlib.suppress(OSError):
                self._forward(reader, upstream, state)
            with contextlib.suppress(OSError):
                upstream.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _forward(self, reader: CommandReader, upstream: socket.socket, state: dict[str, bool]) -> None:
        for command, raw in reader:
            self.commands.append(command)
            held = self._held
            if held is not None and held(command):
                self.holding.set()
                self._released.wait()
            for entry in self._swallowing:
                if entry[0](command):
                    self._swallowing.remove(entry)
                    state.update(swallow=True, cut=entry[1])
                    break
            upstream.sendall(raw)

    def _answers(self, upstream: socket.socket, connection: socket.socket, state: dict[str, bool]) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(65536):
                if not state["swallow"]:
                    connection.sendall(data)
                    continue
                self.swallowed.set()
                if state["cut"]:
                    break
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class ScriptedServer(_Listener):
    """Answers every command with what `answer(command)` returns, as raw RESP; None closes the connection unanswered.

    An empty answer hangs. Handshake commands and INFO are answered as a healthy server would.
    """

    def __init__(self, answer: Callable[[Command], bytes | None], *, tcp: bool = False) -> None:
        self._answer = answer
        super().__init__(tcp=tcp)

    def _serve(self, connection: socket.socket, reader: CommandReader) -> None:
        for command, _ in reader:
            self.commands.append(command)
            if command[0].upper() in (b"CLIENT", b"SELECT", b"ASKING"):
                answer: bytes | None = b"+OK\r\n"
            elif command[0].upper() == b"INFO":
                answer = b"$0\r\n\r\n"
            else:
                answer = self._answer(command)
            if answer is None:
                return
            with contextlib.suppress(OSError):
                connection.sendall(answer)
