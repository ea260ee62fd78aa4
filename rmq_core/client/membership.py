"""Process-wide locks of group members: the groups of this process, with roles and client ids.

A broker tells the members of a group apart by their client ids: two consumers with one id would both take the queues
of one, and checks of transactions would go to either of two producers.

Source: ``MQClientInstance#registerConsumer``, ``#registerProducer``.
"""

from typing import Final, Literal

from rmq_formats.errors import OptionError

_JOINED: Final[set[tuple[str, str, str]]] = set()  # role, client id and group


class Membership:
    """Process-wide lock on role, client id and group."""

    def __init__(self, role: Literal["consumer", "producer"], client_id: str, group: str) -> None:
        self._key = role, client_id, group
        self._is_acquired = False

    def acquire(self) -> None:
        """Acquire the lock.

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
        self._is_acquired = True

    def release(self) -> None:
        """Release the lock, if it is acquired."""
        if self._is_acquired:
            _JOINED.discard(self._key)
            self._is_acquired = False
