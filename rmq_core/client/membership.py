"""Membership: which groups this process consumes in and produces in, and by which client ids.

A broker tells the members of a group apart by their client ids: two consumers with one id would both take the queues
of one, and checks of transactions would go to either of two producers.

Source: ``MQClientInstance#registerConsumer``, ``#registerProducer``.
"""

from typing import Final, Literal

from rmq_formats.errors import OptionError

_JOINED: Final[set[tuple[str, str, str]]] = set()  # role, client id and group


class Membership:
    """The place of one client in its group, which no other of this process can take while it is held."""

    def __init__(self, role: Literal["consumer", "producer"], client_id: str, group: str) -> None:
        self._key = role, client_id, group
        self._is_held = False

    def take(self) -> None:
        """Take the place.

        Raises:
            OptionError: another client of this process has it.
        """
        role, client_id, group = self._key
        if self._key in _JOINED:
            raise OptionError(
                f"group {group} has a {role} with client id {client_id} in this process already: "
                "give another one another instance_name"
            )
        _JOINED.add(self._key)
        self._is_held = True

    def give_up(self) -> None:
        """Give the place up, if it is held."""
        if self._is_held:
            _JOINED.discard(self._key)
            self._is_held = False
