"""Request modes (pull or pop) of groups, and the queues that members read (codes 400, 401, 402).

Source: ``QueryAssignmentProcessor``, ``MessageRequestModeManager``.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from rmq_core.broker.pop.checks import refuse_lmq_group
from rmq_core.broker.processors.durable_responder import respond_after_persist
from rmq_core.broker.state import APPLY_FIRST, BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.table_file import PendingChanges, TableFile
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body
from rmq_core.remoting.bodies.configs import MessageRequestMode, MessageRequestModes
from rmq_core.remoting.bodies.pop import Allocation, Assignment, Assignments, QueryAssignment, averagely, by_circle
from rmq_core.remoting.bodies.routes import TopicRouteData
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import TopicKind, kind_of
from rmq_core.store.commitlog.lmq_offsets import is_lmq

_FILE: Final = "messageRequestMode.json"
PULL: Final = "PULL"
POP: Final = "POP"
_ALL_QUEUES: Final = -1
_STRATEGIES: Final[dict[str, Allocation]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}
_MAX_ROUTES: Final = 1000
_ROUTE_MS: Final = 20_000

Route = Callable[[str], Awaitable[TopicRouteData | None]]


class QueryAssignmentProcessor:
    """Handlers of queue assignments, and the table of request modes."""

    def __init__(self, state: BrokerState, route: Route) -> None:
        self._state = state
        self._route = route
        self._routes: dict[str, tuple[int, list[MessageQueue]]] = {}  # expiry time by the steady clock, and queues
        self._modes = state.files.load(_FILE, MessageRequestModes).message_request_mode_map
        self.file = TableFile(state.files, _FILE, self._body)
        self._pending = PendingChanges(self._modes)
        self.file.on_written(self._pending.confirm)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: respond_after_persist(self.set_mode, self),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    def _body(self) -> MessageRequestModes:
        return MessageRequestModes(message_request_mode_map=self._modes)

    def modes(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(body=encode_body(self._body()))

    def set_mode(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        mode = decode_body(request.body, MessageRequestMode, is_request=True)
        if mode.topic.startswith(names.RETRY_PREFIX):
            raise ResponseError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._state.require_topic(mode.topic, APPLY_FIRST)
        if is_lmq(mode.topic):  # routes of name servers have no light queues
            raise ResponseError(ResponseCode.NO_PERMISSION, f"[{mode.topic}] is a light queue (LMQ): it has no mode")
        refuse_lmq_group(self._state, mode.consumer_group)
        if mode.mode not in (PULL, POP):
            raise ResponseError(ResponseCode.INVALID_PARAMETER, f"mode {mode.mode!r} is not {PULL} or {POP}")
        auto = self._state.config.auto_create_subscription_group
        if self._state.groups.find(mode.consumer_group, auto) is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        modes_before = self._modes.get(mode.topic)
        self._modes[mode.topic] = (modes_before or {}) | {mode.consumer_group: mode}
        self.file.changes += 1
        self._pending.record(self.file.changes, mode.topic, modes_before, self._modes[mode.topic])
        return request.response()

    def adopt(self, modes: MessageRequestModes) -> None:
        """Replace a slave's request modes by its master's."""
        if modes.message_request_mode_map != self._modes:
            self._modes.clear()
            self._modes.update(modes.message_request_mode_map)
            self.file.changes += 1
            self.file.save()

    def revert(self, since: int, until: int) -> None:
        self._pending.revert(since, until)
        self.file.changes += 1
        self.file.save()

    async def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Assign queues to a client (QUERY_ASSIGNMENT, 400): all queues for POP, the client's share for pull."""
        query = decode_body(request.body, QueryAssignment, is_request=True)
        queues = await self._queues(query.topic)
        assignments = None if queues is None else self._assign(query, queues)
        return request.response(body=encode_body(Assignments(message_queue_assignments=assignments)))

    def _assign(self, query: QueryAssignment, queues: list[MessageQueue]) -> list[Assignment] | None:
        mode = self._modes.get(query.topic, {}).get(query.consumer_group) or MessageRequestMode(mode=PULL)
        if query.message_model == "BROADCASTING":
            return [Assignment(message_queue=queue, mode=PULL) for queue in queues]
        group = self._state.consumers.groups.get(query.consumer_group)
        if group is None:
            return None
        clients = sorted({client.client_id for client in group.clients.values()})
        strategy = _STRATEGIES.get(query.strategy_name, averagely)
        if mode.mode == POP and kind_of(query.topic) is TopicKind.NORMAL:
            assigned_queues = _allocate_for_pop(query.client_id, queues, clients, strategy, mode.pop_share_queue_num)
        else:
            mode, assigned_queues = MessageRequestMode(mode=PULL), strategy(query.client_id, queues, clients)
        return [Assignment(message_queue=queue, mode=mode.mode) for queue in dict.fromkeys(assigned_queues)]

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        """List the readable queues of a topic at all brokers, sorted; None if no broker has the topic."""
        now_ms = self._state.steady_ms()
        until, queues = self._routes.get(topic, (0, []))
        if now_ms < until:
            return queues
        route = await self._route(topic)
        if route is None:
            config = self._state.topics.table.get(topic)
            if config is None:
                return None
            name, queue_ids = self._state.config.broker_name, range(config.read_queue_nums)
            return [MessageQueue(broker_name=name, queue_id=queue_id, topic=topic) for queue_id in queue_ids]
        queues = sorted(
            MessageQueue(broker_name=data.broker_name, queue_id=queue_id, topic=topic)
            for data in route.queue_datas
            if data.perm & names.PERM_READ
            for queue_id in range(data.read_queue_nums)
        )
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        self._routes[topic] = now_ms + _ROUTE_MS, queues
        return queues


def _allocate_for_pop(
    client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str], strategy: Allocation, share: int
) -> list[MessageQueue]:
    """Allocate all queues, or those of a client and the clients after it. Source: ``allocate4Pop``."""
    if share <= 0 or share >= len(clients) - 1:
        return [msgspec.structs.replace(queue, queue_id=_ALL_QUEUES) for queue in queues]
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    return [
        queue
        for number in range(share + 1)
        for queue in strategy(clients[(index + number) % len(clients)], queues, clients)
    ]
