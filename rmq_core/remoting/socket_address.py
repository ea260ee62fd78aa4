"""Address of a socket, in the protocol's format."""

from typing import Any


def address_text(name: Any) -> str:
    """Return a socket's ``host:port``; IPv6 in brackets, without its zone; zeros if the peer has disconnected."""
    host, port = name[:2] if isinstance(name, tuple) else ("0.0.0.0", 0)
    host = host.partition("%")[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
