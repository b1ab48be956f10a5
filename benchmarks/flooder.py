"""A peer that floods a mesh node: a raw process that is admitted, answers probes, and sends one-way messages.

usage: python -m benchmarks.flooder ENDPOINT --mesh NAME --packet NAME --payload HEX

It speaks the records of the wire over plain pyzmq, one blocking loop, so that what it can send is not bounded by the
node's own code on this side. Unless it is ``--obedient`` it does not even hold back when it is told *paused*. Its
standard input takes one command per line: a number is a rate in messages per second, ``max`` as many as go out, ``0``
none. It prints ``ready`` when it is admitted, and how many messages it sent when the input ends.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import zmq

from zlinkpy.wire import (
    REQUIRED_CAPABILITY,
    Admit,
    Ext,
    FlowState,
    Hello,
    Lane,
    LivenessAck,
    LivenessProbe,
    NodeSend,
    ObjectRole,
    PayloadHead,
    ReceiveFlow,
    RouteMeshAdmission,
    RuntimeState,
    Topology,
    decode,
    encode,
)

BURST = 200
"""Messages between two looks at the input and at what the node says."""
PACE_SECONDS = 0.001
"""How often a bounded rate sends what has become due."""


class Flooder:
    """One admitted peer. Raises SystemExit when the node does not admit it."""

    def __init__(self, endpoint: str, mesh: str, frames: list[bytes], *, obedient: bool) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoint = endpoint
        self._frames = frames
        self._admission = RouteMeshAdmission(
            mesh_name=mesh,
            node_rid="flooder",
            security_identity="anonymous",
            lifecycle_generation=1,
            descriptor_revision=1,
            advertised_endpoint="tcp://127.0.0.1:1",
            channels=(),
            ext=Ext(
                runtime_state=RuntimeState.SERVING,
                application_version=0,
                maintenance_wave=None,
                protocol_capabilities=(REQUIRED_CAPABILITY,),
                object_role=ObjectRole.NONE,
                placement_weight=100,
            ),
        )
        self.sent = 0
        self._obedient = obedient
        self._connect()

    def _connect(self) -> None:
        self._held = False
        pair = os.urandom(8)
        self.application = self._lane(Lane.APPLICATION, pair)
        self._monitor = self.application.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.completion = self._lane(Lane.COMPLETION, pair)

    def _connect_again(self) -> None:
        """Whose answers wait behind its own flood is expired like anybody else."""
        self.application.disable_monitor()
        for socket in (self.application, self.completion, self._monitor):
            socket.close()
        self._connect()

    def _lane(self, lane: Lane, pair: bytes) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RECONNECT_IVL, -1)
        socket.connect(self._endpoint)
        socket.send_multipart(encode(Hello(self._admission, lane, pair)))
        if not socket.poll(5000):
            sys.exit(f"{self._endpoint} does not answer")
        answer = decode(socket.recv_multipart(), topology=Topology.ROUTE_MESH, lane=lane).command
        if not isinstance(answer, Admit):
            sys.exit(f"{self._endpoint} answers {answer}")
        return socket

    def listen(self) -> None:
        """Answer the probes that have come, and note whether to hold back."""
        while self.application.poll(0):
            frames = self.application.recv_multipart()
            command = decode(frames, topology=Topology.ROUTE_MESH, lane=Lane.APPLICATION).command
            if isinstance(command, LivenessProbe):
                self.application.send_multipart(encode(LivenessAck(command.probe_id)))
            elif isinstance(command, ReceiveFlow):
                self._held = self._obedient and command.state is FlowState.PAUSED
        if self._monitor.poll(0):
            self._connect_again()

    def burst(self, most: int) -> int:
        """Send up to `most` messages, as far as there is room; how many it was."""
        for number in range(0 if self._held else most):
            try:
                self.application.send_multipart(self._frames, zmq.NOBLOCK)
            except zmq.Again:
                return number
        return 0 if self._held else most

    def run(self) -> None:
        """Follow the commands of the standard input until it ends."""
        poller = zmq.Poller()
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        rate, due, last = 0.0, 0.0, time.perf_counter()
        while True:
            if poller.poll(0 if rate == float("inf") else PACE_SECONDS * 1000):
                line = os.read(sys.stdin.fileno(), 100).decode().split()
                if not line:
                    return
                rate, due, last = float("inf") if line[-1] == "max" else float(line[-1]), 0.0, time.perf_counter()
            self.listen()
            now = time.perf_counter()
            if rate == float("inf"):
                self.sent += self.burst(BURST)
                continue
            # What did not go out in time is not made up for: a flood has a rate, not a debt.
            due = min(due + rate * (now - last), rate * 0.1)
            last = now
            sent = self.burst(int(due))
            due -= sent
            self.sent += sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--mesh", required=True)
    parser.add_argument("--packet", required=True)
    parser.add_argument("--payload", type=bytes.fromhex, default=b"")
    parser.add_argument("--obedient", action="store_true", help="send nothing while told to hold back")
    options = parser.parse_args()
    head = PayloadHead(options.packet, "application/msgpack")
    frames = encode(NodeSend(head), parts=[options.payload])
    flooder = Flooder(options.endpoint, options.mesh, frames, obedient=options.obedient)
    print("ready", flush=True)
    flooder.run()
    print(flooder.sent, flush=True)


if __name__ == "__main__":
    main()
