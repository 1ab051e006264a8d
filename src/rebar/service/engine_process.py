"""An engine in a process of its own, seen from both ends.

The law: the process serves one connection, its standard input. It says Ready or Refused first, then
one StepReport a step and a Beat twice a second; when the connection ends, so does it. It reads no
arguments and no environment of its own, and ignores Ctrl-C: who started it decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import msgspec

import rebar.errors
from rebar.errors import EngineError, RebarError
from rebar.hal import SharedMemory
from rebar.service.collector import settle
from rebar.service.frames import FrameReader, frame, leave_with, receive
from rebar.service.messages import (
    Beat,
    EngineSpec,
    FromEngine,
    Orders,
    Ready,
    Refused,
    StepReport,
)

if TYPE_CHECKING:
    from rebar.service.worker import EngineWorker

BEAT_SECONDS = 0.5
START_SECONDS = 600.0  # a cold model of many GB from a slow disk
COMMAND = "from rebar.service.engine_process import main; main()"


class EngineProcess:
    """The front's end of one engine process. `ready` says what it can hold."""

    def __init__(self, spec: EngineSpec, kept: SharedMemory | None = None) -> None:
        """Starts it and waits until the model is loaded. kept: where its keys and values lie, and
        what an engine before left there; None for memory of its own.

        Raises what loading raised there, EngineError when it died without a word.
        """
        ours, theirs = socket.socketpair()
        self.kept = kept
        passed = () if kept is None else (kept.descriptor,)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND],
                stdin=theirs.fileno(),
                pass_fds=passed,
                start_new_session=True,
            )
        if kept is not None:
            spec = msgspec.structs.replace(spec, kept=kept.descriptor)
        self.sock = ours
        self.reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        try:
            self.ready = self._handshake(spec)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def _handshake(self, spec: EngineSpec) -> Ready:
        self.sock.settimeout(START_SECONDS)
        self.sock.sendall(frame(spec))
        first = receive(self.sock, self.reader)
        self.sock.settimeout(None)
        if first and isinstance(first[0], Ready):
            return first[0]
        if first and isinstance(first[0], Refused):
            raise _error(first[0])
        code = self.process.wait(10)
        raise EngineError(
            f"the engine process ended with code {code} while it loaded the model. Look for its "
            "last words above; if it was killed, try a smaller --memory."
        )

    def kill(self) -> None:
        """Ends it now, stopped or stuck as it may be, and takes its exit status."""
        self.process.kill()
        self.process.wait()
        self.sock.close()

    def end(self, timeout: float) -> bool:
        """Closes the connection and waits for the process to leave; whether it did by itself."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        try:
            self.process.wait(timeout)
            left = True
        except subprocess.TimeoutExpired:
            left = False
        self.kill()
        return left


def _error(refused: Refused) -> RebarError:
    kind = getattr(rebar.errors, refused.error, EngineError)
    if not (isinstance(kind, type) and issubclass(kind, RebarError)):
        kind = EngineError
    error = kind.__new__(kind, refused.message)
    error.__dict__.update({"code": None, "param": None, "needed": 0, "available": 0})
    return error


# The other end.


def main() -> NoReturn:
    """The engine's process: standard input is its connection."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s engine %(process)d: %(message)s"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=os.dup(0))
    leave_with(sock)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    orders = FrameReader(Orders)
    specs = receive(sock, FrameReader(EngineSpec))
    if specs:
        _Engine(sock, specs[0]).serve(orders)
    os._exit(0)  # threads inside native code are not waited for: nothing here outlives the socket


class _Engine:
    def __init__(self, sock: socket.socket, spec: EngineSpec) -> None:
        self.sock = sock
        self.spec = spec
        self._sending = threading.Lock()

    def serve(self, orders: FrameReader[Orders]) -> None:
        """Loads, then obeys until the connection ends."""
        from rebar.service.starting import start_engine
        from rebar.service.worker import EngineWorker

        try:
            engine, limits = start_engine(self.spec)
        except RebarError as error:
            self.send(Refused(type(error).__name__, str(error)))
            return
        worker = EngineWorker(engine, self.send)
        settle()
        self.send(Ready(limits, engine.stats()))
        worker.start()
        threading.Thread(target=self._beat, args=(worker,), daemon=True).start()
        while given := receive(self.sock, orders):
            for order in given:
                worker.give(order)

    def _beat(self, worker: EngineWorker) -> None:
        while True:
            self.send(Beat(worker.turn_seconds))
            time.sleep(BEAT_SECONDS)

    def send(self, message: Ready | Refused | Beat | StepReport) -> None:
        """From any thread. When the front is gone there is nobody to tell."""
        with self._sending, contextlib.suppress(OSError):
            self.sock.sendall(frame(message))
