"""Addresses of a broker: the one for clients, and free ports, bound at once."""

import errno
import socket

from rmq_core.broker.config import FAST_PORT_DISTANCE
from rmq_core.remoting.errors import ListenError
from rmq_core.remoting.uniq_key import local_ip


def local_address(bind_address: str) -> str:
    """Return the address to advertise: the address to listen on, or the machine's for a wildcard."""
    if bind_address not in ("0.0.0.0", "::", ""):
        try:
            return str(socket.getaddrinfo(bind_address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise ListenError(bind_address, f"cannot listen: {error.strerror}") from error
    return local_ip()


def free_ports(bind_address: str) -> tuple[socket.socket, socket.socket]:
    """Bind a free port and its fast port, two below; the caller listens on both. Raises ListenError."""
    family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
    while True:
        first, second = socket.socket(family), socket.socket(family)
        try:
            first.bind((bind_address, 0))
            second.bind((bind_address, int(first.getsockname()[1]) - FAST_PORT_DISTANCE))
        except OSError as error:
            first.close()
            second.close()
            if error.errno != errno.EADDRINUSE:
                raise ListenError(bind_address, f"cannot listen: {error.strerror}") from error
        else:
            return first, second
