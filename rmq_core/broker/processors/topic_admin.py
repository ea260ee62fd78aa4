"""Administration of topics (codes 17, 18, 21, 202, 215, 300, 305, 351). Source: ``AdminBrokerProcessor``."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from rmq_core.broker.slices import SLICE_S
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names, stats
from rmq_core.broker.tables.attributes import CLEANUP_POLICY, COMPACTED, TOPIC_ATTRIBUTES, change_attributes
from rmq_core.broker.tables.topics import has_batch_queues, is_lite
from rmq_core.remoting.bodies.clients import GroupList
from rmq_core.remoting.bodies.codec import TOPIC_FILTER_TYPES, MessageQueue, decode_body, encode_body, queue_key
from rmq_core.remoting.bodies.configs import TopicConfig, TopicConfigList, TopicsOfMaster, parse_attribute_changes
from rmq_core.remoting.bodies.routes import TopicList
from rmq_core.remoting.bodies.stats import TopicOffset, TopicStats
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import CreateTopic, Topic
from rmq_core.store.commitlog.lmq_offsets import is_lmq
from rmq_core.store.store import MessageStore

log = logging.getLogger("rmq.broker.admin")
MAX_QUEUES: Final = 65_536  # of a topic: each may become a file


class TopicAdmin:
    """Handlers of requests that administer topics."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._removal_lock = asyncio.Lock()
        self._removals: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.put_all,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.get_all,
            RequestCode.GET_TOPIC_CONFIG: self.get,
            RequestCode.GET_TOPIC_STATS_INFO: self.get_stats,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.DELETE_TOPIC_IN_BROKER_LIST: self.delete_all,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.get_groups,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.get_system,
        }

    def put(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        fields = read_fields(request, CreateTopic)
        if fields.topic_filter_type not in TOPIC_FILTER_TYPES:
            problem = f"topicFilterType = [{fields.topic_filter_type}] value invalid"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
        topic = TopicConfig(
            topic_name=fields.topic,
            read_queue_nums=fields.read_queue_nums,
            write_queue_nums=fields.write_queue_nums,
            perm=fields.perm,
            topic_filter_type=fields.topic_filter_type,
            topic_sys_flag=fields.topic_sys_flag,
            order=fields.order,
            attributes=parse_attribute_changes(fields.attributes or ""),
        )
        self._put([topic], connection)
        return request.response()

    def put_all(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self._put(decode_body(request.body, TopicConfigList, is_request=True).topic_config_list, connection)
        return request.response()

    def _put(self, topics: list[TopicConfig], connection: Connection) -> None:
        table = self._state.topics
        for topic in topics:
            _check_name(self._state, topic.topic_name)
            if not (0 <= topic.read_queue_nums <= MAX_QUEUES and 0 <= topic.write_queue_nums <= MAX_QUEUES):
                raise ResponseError(ResponseCode.INVALID_PARAMETER, f"queue numbers are not within 0 and {MAX_QUEUES}")
            if not 0 <= topic.perm <= names.PERM_READ_WRITE | names.PERM_INHERIT:
                raise ResponseError(ResponseCode.INVALID_PARAMETER, f"perm {topic.perm} is not within 0 and 7")
            is_mixed = (topic.attributes or {}).get("+message.type") == "MIXED"
            if is_mixed and not self._state.config.enable_mixed_message_type:
                raise ResponseError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        # Unchanged topics are skipped: their attributes have no signs, and are not changes.
        topics = [
            change_attributes(TOPIC_ATTRIBUTES, table.table.get(topic.topic_name), topic)
            for topic in topics
            if table.get(topic.topic_name) != topic
        ]
        for topic in filter(is_lite, topics):
            self._check_lite(topic)
        if any(table.get(topic.topic_name) != topic for topic in topics):
            table.put_all(topics)
            changed = ", ".join(topic.topic_name for topic in topics)
            log.info(
                "%(client)s made or changed the topics %(topics)s",
                {"client": connection.remote_address, "topics": changed},
            )
            for topic in topics:
                if topic.attributes.get(CLEANUP_POLICY) == COMPACTED:
                    log.warning(
                        "topic %(topic)s has cleanup.policy=COMPACTION, and this broker compacts no topic: "
                        "its messages expire as all others do, the last of a key too",
                        {"topic": topic.topic_name},
                    )

    def _check_lite(self, topic: TopicConfig) -> None:
        """Refuse a parent of lite topics without light queues; the original creates the topic."""
        if not self._state.store.config.lmq_enabled:
            problem = "message.type LITE needs a broker with enableLmq=true and enableMultiDispatch=true"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
        if has_batch_queues(topic):
            problem = "message.type LITE does not go with queue.type BatchCQ, whose messages stand in no light queue"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)

    def get_all(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return all topic configurations, and for our slaves the deleted topics (GET_ALL_TOPIC_CONFIG, 21)."""
        state = self._state
        topics = TopicsOfMaster(
            data_version=state.topics.version,
            topic_config_table=state.topics.table,
            topics_dropped=dict(state.store.deleted_topics),
        )
        return request.response(body=encode_body(topics))

    def get(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = read_fields(request, Topic).topic
        topic = self._state.topics.get(name)
        if topic is None:
            return request.response(int(ResponseCode.TOPIC_NOT_EXIST), f"No topic in this broker. topic: {name}")
        return request.response(body=encode_body(topic))

    async def get_stats(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name, state, table = read_fields(request, Topic).topic, self._state, {}
        topic = state.require_topic(name)
        async with state.long_requests:
            async for queue_id in state.slices.each(range(max(topic.read_queue_nums, topic.write_queue_nums))):
                queue = MessageQueue(broker_name=state.config.broker_name, queue_id=queue_id, topic=name)
                table[queue_key(queue)] = topic_offset(state.store, name, queue_id)
            body = TopicStats(offset_table=table, topic_put_tps=state.stats.rate(stats.TOPIC_PUT_NUMS, name))
            return request.response(body=await asyncio.to_thread(encode_body, body))

    def delete(self, request: RemotingCommand, connection: Connection) -> Awaitable[RemotingCommand]:
        """Delete a topic with its queues and consumer offsets; respond at the end (DELETE_TOPIC_IN_BROKER, 215).

        Its messages stay until the file of topics is written without it. A new topic of its name may be created
        while the files of its queues are removed.
        """
        return self._delete([read_fields(request, Topic).topic], request, connection)

    def delete_all(self, request: RemotingCommand, connection: Connection) -> Awaitable[RemotingCommand]:
        """Delete several topics, or none if one cannot be deleted (DELETE_TOPIC_IN_BROKER_LIST, 5002)."""
        topics = decode_body(request.body or b"{}", TopicList, is_request=True).topic_list
        if not topics:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "The specified topic list is blank.")
        return self._delete(list(dict.fromkeys(topics)), request, connection)

    def _delete(
        self, topics: list[str], request: RemotingCommand, connection: Connection
    ) -> Awaitable[RemotingCommand]:
        state = self._state
        for name in topics:
            check_deletable(state, name)
        configs = [state.topics.table[name] for name in topics if name in state.topics.table]
        end = state.store.max_physical_offset  # messages after it are of a topic that was created again
        for name in topics:
            state.topics.remove(name)
            log.info("%(client)s deletes the topic %(topic)s", {"client": connection.remote_address, "topic": name})
        deleted: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def delete_queues(is_written: bool) -> None:
            if not is_written:  # the topics come back
                return
            try:
                state.store.delete_topics(topics, {name: end for name in topics if name in state.topics.table})
            except OSError as error:
                state.topics.put_all([config for config in configs if config.topic_name not in state.topics.table])
                log.error("the queues of %(topics)s cannot be deleted: %(error)s", {"topics": topics, "error": error})
                if not deleted.done():
                    deleted.set_result(error)
                return
            for name in topics:
                state.offsets.remove_topic(name)
            removal = asyncio.get_running_loop().create_task(self._remove_files(deleted))
            self._removals.add(removal)  # a task without a reference may be garbage-collected
            removal.add_done_callback(self._removals.discard)

        state.topics.file.call_when_written(delete_queues)
        return self._respond_when_deleted(request, deleted)

    async def _remove_files(self, deleted: asyncio.Future[OSError | None]) -> None:
        failure = None
        async with self._removal_lock:
            try:
                while self._state.store.remove_deleted(SLICE_S):
                    await asyncio.sleep(0)
            except OSError as error:
                failure = error
        if not deleted.done():  # else the connection has ended
            deleted.set_result(failure)

    @staticmethod
    async def _respond_when_deleted(
        request: RemotingCommand, deleted: asyncio.Future[OSError | None]
    ) -> RemotingCommand:
        error = await deleted
        if error is not None:
            raise error
        return request.response()

    def get_groups(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name = read_fields(request, Topic).topic
        state = self._state
        groups = sorted({*state.consumers.groups_of(name), *state.offsets.groups_of(name)})
        return request.response(body=encode_body(GroupList(group_list=groups)))

    def get_system(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(body=encode_body(TopicList(topic_list=sorted(self._state.topics.system))))


def topic_offset(store: MessageStore, topic: str, queue_id: int) -> TopicOffset:
    """Return the bounds of a queue, and the store time of its last message."""
    high = store.max_offset(topic, queue_id)
    return TopicOffset(
        min_offset=store.min_offset(topic, queue_id),
        max_offset=high,
        last_update_timestamp=store.store_timestamp_ms(topic, queue_id, high - 1) or 0 if high else 0,
    )


def check_deletable(state: BrokerState, topic: str) -> None:
    """Refuse to delete other than a user's topic. Raises ResponseError."""
    if not (state.store.config.lmq_enabled and is_lmq(topic)):  # deletion of its queue
        _check_name(state, topic)


def _check_name(state: BrokerState, topic: str) -> None:
    problem = names.find_topic_name_problem(topic)
    if problem is None and state.topics.is_system(topic):
        problem = f"The topic[{topic}] is conflict with system topic."
    if problem is not None:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, problem)
