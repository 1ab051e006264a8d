"""Tells a service manager where the process stands (sd_notify(3)); without one, tells nobody."""

from __future__ import annotations

import contextlib
import os
import socket


def tell_manager(state: str) -> bool:
    """Sends "READY=1" and the like to the socket that NOTIFY_SOCKET names; whether it went out.

    A manager that does not listen is no reason not to serve.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address.replace("@", "\0", 1))
        return True
    return False
