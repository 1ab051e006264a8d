"""Messages over a local socket: four bytes of length, little-endian, then MessagePack.

The law: a frame is whole or the connection is over. Both ends are this program in one version, so a
frame that cannot be read is a fault of ours and ends the connection.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from rebar.errors import EngineError

HEAD = struct.Struct("<I")
MAX_FRAME = 1 << 30  # far above any step's report; a larger length is garbage

M = TypeVar("M")


class FrameReader(Generic[M]):
    """Cuts a byte stream into messages of one type."""

    def __init__(self, kind: type[M] | UnionType) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that are whole now. Raises EngineError for what is no message."""
        self._bytes += data
        found, at = [], 0
        while len(self._bytes) - at >= HEAD.size:
            (length,) = HEAD.unpack_from(self._bytes, at)
            if length > MAX_FRAME:
                raise EngineError(f"A frame of {length} bytes cannot be. Restart the server.")
            end = at + HEAD.size + length
            if len(self._bytes) < end:
                break
            found.append(self._decode(memoryview(self._bytes)[at + HEAD.size : end]))
            at = end
        del self._bytes[:at]
        return found

    def _decode(self, frame: memoryview) -> M:
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise EngineError(f"A message cannot be read: {error}. Restart the server.") from error
        finally:
            frame.release()


def frame(message: msgspec.Struct | str) -> bytes:
    """A message as it goes over the socket."""
    body = msgspec.msgpack.encode(message)
    return HEAD.pack(len(body)) + body


def receive(sock: socket.socket, reader: FrameReader[M]) -> list[M]:
    """Blocks for the next messages; none when the other end is gone.

    Waits in poll: recv is also woken whenever the other end has read something of ours, and takes
    a core from somebody for that. TimeoutError as the socket says.
    """
    there = select.poll()
    there.register(sock, select.POLLIN)
    limit = sock.gettimeout()
    while True:
        if not there.poll(None if limit is None else limit * 1000):
            raise TimeoutError("nothing came in time")
        try:
            data = sock.recv(1 << 18)
        except ConnectionError:
            return []
        if not data:
            return []
        if found := reader.feed(data):
            return found


def leave_with(sock: socket.socket) -> None:
    """Ends this process as soon as the other end of `sock` is gone, whatever it is busy with: it
    may be loading for minutes, or compiling something without end, and nobody would ever hear.
    """

    def watch() -> None:
        gone = select.poll()
        gone.register(sock, select.POLLRDHUP)
        gone.poll()
        os._exit(0)

    threading.Thread(target=watch, name="rebar-leave", daemon=True).start()
