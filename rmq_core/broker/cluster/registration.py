"""Registers a broker and its topics with its name servers.

A name server is told of all topics when it is told of any for the first time by a connection, periodically, and after
a topic was removed; in between, of those that were put. A name server that deletes what a registration lacks
(``deleteTopicWithBrokerRegistration``) wants all of them each time: ``enableSingleTopicRegister``.

Source: ``BrokerOuterAPI#registerBrokerAll``, ``BrokerController#registerIncrementBrokerData``.
"""

import asyncio
import zlib
from collections.abc import Collection
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.table_file import log
from rmq_core.remoting.answers import awaited, drop
from rmq_core.remoting.bodies import KVTable, RegisterBrokerBody, TopicRouteData, decode_body, encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.namesrv_requests import BrokerId, RegisterBroker
from rmq_formats.errors import FormatError

_CRC_MASK: Final = 0x7FFFFFFF
_ANSWER_TIMEOUT_S: Final = 1.0  # an answer waits so long for name servers; clients give up after three seconds
_UNREGISTER_TIMEOUT_S: Final = 1.0
_REST: Final = 50.0  # times what encoding a registration has taken: the name server decodes as much, and more brokers'
_LEAST_REST_S: Final = 0.02  # changes that come meanwhile are registered at once
_LONGEST_REST_S: Final = 0.5  # answers wait for registrations


class Registration:
    """Registers with all name servers: at the start, periodically, and when topics change."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._client = RemotingClient(
            on_disconnect=self._forgotten, tls=state.config.tls.client(), credentials=state.config.own_credentials
        )
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: set[str] = set()
        # The topics that a name server lacks, by its address; one that may lack any is not there.
        self._lacking: dict[str, dict[str, None]] = {}
        self._took_s = 0.0  # of the event loop, by the last registration
        self._registered: asyncio.Future[None] | None = None  # ends when changed topics are registered
        state.topics.on_change(self._note)

    def _note(self, topics: Collection[str] | None) -> None:
        """Note what name servers lack from now on, and have it registered."""
        if topics is None or self._state.config.enable_single_topic_register:
            self._lacking.clear()
        for lacking in self._lacking.values():
            lacking.update(dict.fromkeys(topics or ()))
        self._changed.set()

    def _forgotten(self, address: str) -> None:
        """A name server forgets the broker whose connection has ended."""
        self._lacking.pop(address, None)

    def before_answer(self, handler: Handler) -> Handler:
        """Wrap a handler: after a change of topics its answer waits until name servers know of that.

        A client that has created a topic asks for its route next.
        """
        topics = self._state.topics

        def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
            before = topics.version
            answer = handler(request, connection)
            return answer if topics.version is before else self.after_change(answer)

        return handle

    def after_change(self, answer: HandlerAnswer) -> HandlerAnswer:
        """Have an answer wait until name servers know of a change of topics; call it in the turn of the change."""
        if answer is None or not self._state.config.namesrvs:
            return answer
        # Made here, before the registration that the change asks for can begin.
        if self._registered is None:
            self._registered = asyncio.get_running_loop().create_future()
        return _when_registered(answer, self._registered)

    async def start(self) -> None:
        """Register, and start the task that does so periodically."""
        await self.register()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop the task, and unregister from the name servers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.gather(*(self._unregister(address) for address in self._state.config.namesrvs))
        await self._client.close()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._state.config.register_name_server_period_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                self._lacking.clear()
            self._changed.clear()
            await self.register()
            await asyncio.sleep(min(_LEAST_REST_S + _REST * self._took_s, _LONGEST_REST_S))

    async def register(self) -> None:
        """Register with all name servers at once; one that does not answer is logged once."""
        registered, self._registered = self._registered, None
        try:
            await asyncio.gather(*(self._register(address) for address in self._state.config.namesrvs))
        finally:
            if registered is not None:
                registered.set_result(None)

    async def _register(self, address: str) -> None:
        state = self._state
        config = state.config
        lacking = self._lacking.get(address)
        if lacking is not None and not lacking:
            return
        self._lacking[address] = {}
        now = asyncio.get_running_loop().time
        began = now()
        wrapper = state.topics.registered(config.broker_permission, lacking)
        body = encode_registration(
            RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compressed=config.compressed_register
        )
        self._took_s = now() - began
        fields = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=state.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
            ha_server_addr=state.replication.address_beside(state.address),
            enable_acting_master=False,
            compressed=config.compressed_register,
            body_crc32=zlib.crc32(body) & _CRC_MASK,
        )
        command = request(RequestCode.REGISTER_BROKER, write_fields(fields), body)
        try:
            answer = await self._client.invoke(address, command, config.register_broker_timeout_ms / 1000)
            if answer.code != 0:
                raise RemotingError(f"{address}: code {answer.code}: {answer.remark}")
            ordered = decode_body(answer.body, KVTable).table if answer.body else {}
        except (RemotingError, FormatError) as error:
            self._lacking.pop(address, None)
            if address not in self._failing:
                log.warning("cannot register: %(error)s", {"namesrv": address, "error": error})
                self._failing.add(address)
            return
        if address in self._failing:
            self._failing.discard(address)
            log.info("registered with %(namesrv)s again", {"namesrv": address})
        state.replication.registered(answer.ext_fields.get("masterAddr"), answer.ext_fields.get("haServerAddr"))
        state.topics.update_order(set(ordered))

    async def route(self, topic: str) -> TopicRouteData | None:
        """Ask name servers, one after the other, for the route of a topic; None if none has it, or none answers."""
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        for address in self._state.config.namesrvs:
            try:
                answer = await self._client.invoke(address, command, _ANSWER_TIMEOUT_S)
                if answer.code == 0:
                    return decode_body(answer.body, TopicRouteData)
            except (RemotingError, FormatError) as error:
                log.info("no route of %(topic)s: %(error)s", {"topic": topic, "error": error})
        return None

    async def _unregister(self, address: str) -> None:
        config = self._state.config
        fields = BrokerId(
            broker_name=config.broker_name,
            broker_addr=self._state.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        try:
            command = request(RequestCode.UNREGISTER_BROKER, write_fields(fields))
            await self._client.invoke(address, command, _UNREGISTER_TIMEOUT_S)
        except RemotingError as error:
            log.warning("cannot unregister: %(error)s", {"namesrv": address, "error": error})


async def _when_registered(answer: HandlerAnswer, registered: asyncio.Future[None]) -> RemotingCommand | None:
    try:
        await asyncio.wait([registered], timeout=_ANSWER_TIMEOUT_S)
        return await awaited(answer)
    finally:
        drop(answer)
