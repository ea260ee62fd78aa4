"""Registration of a broker and its topics with its name servers.

The first registration on a connection, the periodic ones and those after the removal of a topic have all topics; others
have only the changed topics. A name server that deletes topics missing in a registration
(``deleteTopicWithBrokerRegistration``) requires all topics each time: ``enableSingleTopicRegister``.

Source: ``BrokerOuterAPI#registerBrokerAll``, ``BrokerController#registerIncrementBrokerData``.
"""

import asyncio
import zlib
from collections.abc import Collection
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.table_file import log
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import KVTable, RegisterBrokerBody, TopicRouteData, encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse, await_response, close_response
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.namesrv_requests import BrokerId, RegisterBroker
from rmq_formats.errors import FormatError

_CRC_MASK: Final = 0x7FFFFFFF
_ANSWER_TIMEOUT_S: Final = 1.0  # of waits for name servers; clients time out after three seconds
_UNREGISTER_TIMEOUT_S: Final = 1.0
_REST_FACTOR: Final = 50.0  # times of an encoding: a pause, as name servers decode registrations of all brokers
_MIN_REST_S: Final = 0.02  # later changes are registered together
_MAX_REST_S: Final = 0.5  # responses wait for registrations


class Registration:
    """Registration with all name servers: at the start, periodically, and after changes of topics."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        tls, credentials = state.config.tls.client(), state.config.broker_credentials
        self._client = RemotingClient(on_disconnect=self._on_disconnect, tls=tls, credentials=credentials)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing: set[str] = set()
        # The topics missing at a name server, by its address; without an entry, all topics may be missing.
        self._missing_topics: dict[str, dict[str, None]] = {}
        self._took_s = 0.0  # time of the event loop that the last registration took
        self._registered: asyncio.Future[None] | None = None  # done when changed topics are registered
        state.topics.on_change(self._on_topics_changed)

    def _on_topics_changed(self, topics: Collection[str] | None) -> None:
        """Record the topics missing at name servers, and wake the registration."""
        if topics is None or self._state.config.enable_single_topic_register:
            self._missing_topics.clear()
        for missing_topics in self._missing_topics.values():
            missing_topics.update(dict.fromkeys(topics or ()))
        self._changed.set()

    def _on_disconnect(self, address: str) -> None:
        """Mark all topics as missing at a name server after the end of the connection."""
        self._missing_topics.pop(address, None)

    def respond_after_registration(self, handler: Handler) -> Handler:
        """Wrap a handler: after a change of topics the response waits, as clients fetch the route next."""
        topics = self._state.topics

        def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
            version_before = topics.version
            response = handler(request, connection)
            return response if topics.version is version_before else self.delay_after_change(response)

        return handle

    def delay_after_change(self, response: HandlerResponse) -> HandlerResponse:
        """Delay a response until changed topics are registered; to be called in the loop turn of the change."""
        if response is None or not self._state.config.namesrvs:
            return response
        # Created before the registration of the change can begin.
        if self._registered is None:
            self._registered = asyncio.get_running_loop().create_future()
        return _respond_when_registered(response, self._registered)

    async def start(self) -> None:
        """Register, and start the periodic registration."""
        await self.register()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop the periodic registration, and unregister from the name servers."""
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
                self._missing_topics.clear()
            self._changed.clear()
            try:
                await self.register()
            except Exception:
                log.exception("a registration failed")
            await asyncio.sleep(min(_MIN_REST_S + _REST_FACTOR * self._took_s, _MAX_REST_S))

    async def register(self) -> None:
        """Register with all name servers at once; log a failure of a name server once."""
        registered, self._registered = self._registered, None
        try:
            await asyncio.gather(*(self._register(address) for address in self._state.config.namesrvs))
        finally:
            if registered is not None:
                registered.set_result(None)

    async def _register(self, address: str) -> None:
        state = self._state
        config = state.config
        missing_topics = self._missing_topics.get(address)
        if missing_topics is not None and not missing_topics:
            return
        self._missing_topics[address] = {}
        now = asyncio.get_running_loop().time
        begin_s = now()
        topics = state.topics.registered(config.broker_permission, missing_topics)
        registration = RegisterBrokerBody(topic_config_serialize_wrapper=topics)
        body = encode_registration(registration, compressed=config.compressed_register)
        self._took_s = now() - begin_s
        fields = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=state.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
            ha_server_addr=state.replication.ha_server_address(state.address),
            enable_acting_master=False,
            compressed=config.compressed_register,
            body_crc32=zlib.crc32(body) & _CRC_MASK,
        )
        command = request(RequestCode.REGISTER_BROKER, write_fields(fields), body)
        try:
            response = await self._client.invoke(address, command, config.register_broker_timeout_ms / 1000)
            if response.code != 0:
                raise RemotingError(f"{address}: code {response.code}: {response.remark}")
            ordered = decode_body(response.body, KVTable).table if response.body else {}
            addresses = response.ext_fields
        except (RemotingError, FormatError) as error:
            self._missing_topics.pop(address, None)
            if address not in self._failing:
                log.warning("cannot register: %(error)s", {"namesrv": address, "error": error})
                self._failing.add(address)
            return
        if address in self._failing:
            self._failing.discard(address)
            log.info("registered with %(namesrv)s again", {"namesrv": address})
        state.replication.update_master_addresses(addresses.get("masterAddr"), addresses.get("haServerAddr"))
        state.topics.update_order(set(ordered))

    async def route(self, topic: str) -> TopicRouteData | None:
        """Fetch the route of a topic from the first name server that has one; None without a route."""
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        for address in self._state.config.namesrvs:
            try:
                response = await self._client.invoke(address, command, _ANSWER_TIMEOUT_S)
                if response.code == 0:
                    return decode_body(response.body, TopicRouteData)
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


async def _respond_when_registered(
    response: HandlerResponse, registered: asyncio.Future[None]
) -> RemotingCommand | None:
    try:
        await asyncio.wait([registered], timeout=_ANSWER_TIMEOUT_S)
        return await await_response(response)
    finally:
        close_response(response)
