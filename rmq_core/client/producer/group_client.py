"""What the members of a group have in common: producers, push consumers, pull consumers."""

from abc import abstractmethod
from collections.abc import Mapping

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.client.options import ClientOptions
from rmq_core.client.producer.packet import MAX_GROUP_CHARACTERS, check_name
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies import HeartbeatData
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.service import Service


class GroupClient(Service):
    """A client that brokers know as a member of a group.

    Attributes:
        group: its group's name.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        options: ClientOptions,
        credentials: Credentials | None,
        *,
        handlers: Mapping[int, Handler] | None = None,
        keeps_instance_name: bool = False,
    ) -> None:
        """Prepare; see ``Cluster``.

        Raises:
            OptionError: no address of a name server.
            MessageError: a bad group.
        """
        check_name("group", group, MAX_GROUP_CHARACTERS)
        self.group = group
        self._cluster = Cluster(
            namesrv, options, credentials=credentials, handlers=handlers, heartbeat=self._heartbeat,
            keeps_instance_name=keeps_instance_name,
        )  # fmt: skip

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._cluster.client_id

    @abstractmethod
    def _heartbeat(self) -> HeartbeatData | None:
        """What brokers are told of it; None while there is nothing."""
