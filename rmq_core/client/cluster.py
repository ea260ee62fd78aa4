"""A client's view of a cluster: topic routes from the name servers, requests and heartbeats to brokers.

Source: ``MQClientInstance``, ``MQClientAPIImpl``.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar

from rmq_core.client.errors import BrokerError, NoRouteError, is_refusal
from rmq_core.client.options import DEFAULT_INSTANCE, ClientOptions
from rmq_core.client.routes import Route, route_of, template_data
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import HeartbeatData
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body
from rmq_core.remoting.bodies.routes import TopicRouteData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.errors import RemotingError, TransportError
from rmq_core.remoting.fields import Fields, read_fields, write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.loop import Service
from rmq_core.remoting.namesrv_requests import GetRoute
from rmq_core.remoting.uniq_key import local_ip
from rmq_formats.errors import OptionError, RmqError

log = logging.getLogger("rmq.client")
_T = TypeVar("_T", bound=Fields)
_Body = TypeVar("_Body")
_INSTANCES: Final = count()
_RECONNECT_RETRY_S: Final = 1.0


class Cluster(Service):
    """Name servers and brokers of one client; use it with ``async with``."""

    def __init__(
        self,
        namesrv: str,
        options: ClientOptions,
        *,
        credentials: Credentials | None = None,
        handlers: Mapping[int, Handler] | None = None,
        heartbeat: Callable[[], HeartbeatData | None] | None = None,
        has_fixed_instance_name: bool = False,
    ) -> None:
        """Create a client without connections.

        ``heartbeat`` returns the heartbeat to send, None without one so far. With ``has_fixed_instance_name``
        the client id is the same after a restart, even if the instance has no name. Raises OptionError.
        """
        self._namesrvs = [address.strip() for address in namesrv.split(";") if address.strip()]
        if not self._namesrvs:
            raise OptionError(f"{namesrv!r} has no HOST:PORT of a name server")
        random.shuffle(self._namesrvs)  # so that clients are distributed over the name servers
        self.client_id = _client_id(options, has_fixed_instance_name)
        self.remoting = RemotingClient(
            handlers, credentials=credentials, tls=options.tls, on_disconnect=self._on_disconnect
        )
        self._options = options
        self._heartbeat = heartbeat
        self._routes: dict[str, Route] = {}
        self._templates: dict[str, tuple[str, int]] = {}  # template topics of topics that did not exist
        self._lmqs: set[str] = set()  # light queues; their routes are copies of topics' cached routes
        self._brokers: dict[str, dict[int, str]] = {}
        self._registered: set[str] = set()  # addresses of brokers that have the client's heartbeat
        self._reconnecting: set[str] = set()  # addresses whose connection has ended
        self._tasks: dict[asyncio.Task[object], None] = {}  # ordered, so that a run in virtual time is repeatable
        self._is_closing = False

    async def start(self) -> None:
        """Start the periodic route updates and heartbeats."""
        self.run_every(self._options.route_poll_interval_s, self.refresh_routes)
        self.run_every(self._options.heartbeat_interval_s, self.send_heartbeats)

    async def close(self) -> None:
        """Close all connections."""
        self._is_closing = True
        await self.stop_tasks()
        await self.remoting.close()

    async def stop_tasks(self) -> None:
        """Cancel all background tasks."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def namesrv(self) -> str:
        """The name servers' addresses, separated by semicolons."""
        return ";".join(self._namesrvs)

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in the background, until it ends or the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[object]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the client failed", exc_info=error)

    def run_every(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run work periodically in the background, until the client is closed; a failure is logged."""
        self.run(self._every(interval_s, work))

    async def _every(self, interval_s: float, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except RmqError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("periodic work of the client failed")

    async def request(
        self,
        address: str,
        code: int,
        fields: Fields | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        also: Iterable[int] = (),
    ) -> RemotingCommand:
        """Send a request to a server and return its answer.

        ``also`` has further response codes that are no errors. Raises BrokerError for other codes, TransportError.
        """
        command = request(code, None if fields is None else write_fields(fields), body)
        return await self.send_command(address, command, timeout_s or self._options.request_timeout_s, also)

    async def send_command(
        self, address: str, command: RemotingCommand, timeout_s: float, also: Iterable[int] = ()
    ) -> RemotingCommand:
        """Send an encoded command; raises as ``request``."""
        response = await self.remoting.invoke(address, command, timeout_s)
        if response.code != ResponseCode.SUCCESS and response.code not in also:
            raise BrokerError(address, response.code, response.remark)
        return response

    async def request_body(
        self, address: str, code: int, kind: type[_Body], fields: Fields | None = None, timeout_s: float | None = None
    ) -> _Body:
        """Send a request and return the decoded body of its answer; raises as ``request``, and DecodeError."""
        return decode_body((await self.request(address, code, fields, timeout_s=timeout_s)).body, kind)

    async def request_fields(self, address: str, code: int, fields: Fields | None, kind: type[_T]) -> _T:
        """Send a request and return the fields of its answer; raises as ``request``."""
        return read_fields(await self.request(address, code, fields), kind)

    async def request_name_servers_body(self, code: int, kind: type[_Body]) -> _Body:
        """Send a request to a name server and return the decoded body; raises as ``request_body``."""
        return decode_body((await self.request_name_servers(code)).body, kind)

    async def request_name_servers(
        self, code: int, fields: Fields | None = None, *, also: Iterable[int] = ()
    ) -> RemotingCommand:
        """Send a request to a name server, or to the next one if it does not respond; raises as ``request``."""
        last_error: TransportError | None = None
        for address in list(self._namesrvs):
            try:
                return await self.request(address, code, fields, also=also)
            except TransportError as error:
                last_error = error
                self._namesrvs.remove(address)  # the next request begins with a server that responds
                self._namesrvs.append(address)
        assert last_error is not None  # at least one name server is configured
        raise last_error

    async def route(self, topic: str) -> Route:
        """Return the route of a topic, cached or from the name servers. Raises NoRouteError, TransportError."""
        return self._routes.get(topic) or await self.refresh_route(topic)

    async def route_or_template(self, topic: str, template: str, max_queues: int) -> Route:
        """Return the route of a topic; a new topic gets the brokers of ``template``. Raises NoRouteError."""
        cached = self._routes.get(topic)
        if cached is not None:
            return cached
        try:
            return await self.refresh_route(topic)
        except NoRouteError:
            data = template_data(await self.route_data(template), max_queues)
            self._templates[topic] = template, max_queues
            return self._cache_route(topic, data)

    async def route_data(self, topic: str) -> TopicRouteData:
        """Fetch the route data of a topic from the name servers; raises as ``route``."""
        response = await self.request_name_servers(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRoute(topic=topic, accept_standard_json_only=True),
            also=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if response.code != ResponseCode.SUCCESS:
            raise NoRouteError(topic, "no name server knows this topic")
        return decode_body(response.body, TopicRouteData)

    async def refresh_route(self, topic: str) -> Route:
        """Fetch and cache the route of a topic from the name servers; raises as ``route``."""
        route = self._cache_route(topic, await self.route_data(topic))
        self._templates.pop(topic, None)
        return route

    async def lmq_route(self, name: str, topic: str) -> Route:
        """Return the route of a light queue (LMQ): the brokers of a topic; raises as ``route``."""
        data = await self.route_data(topic)
        self._cache_route(topic, data)
        self._lmqs.add(name)
        return self._cache_route(name, template_data(data, 1))

    async def refresh_routes(self) -> None:
        """Refresh the routes of all cached topics; a failed refresh leaves the former route."""
        fresh: list[Route] = []
        for topic in [name for name in self._routes if name not in self._lmqs]:  # in order, see above
            try:
                fresh.append(await self.refresh_route(topic))
            except RemotingError as error:
                if topic not in self._templates:
                    log.warning("cannot refresh the route of %s: %s", topic, error)
        # A retained route has outdated addresses if a refreshed route has other addresses of the same brokers.
        routes = [*self._routes.values(), *fresh]
        self._brokers = {name: by_id for route in routes for name, by_id in route.brokers.items()}

    def _cache_route(self, topic: str, data: TopicRouteData) -> Route:
        route = route_of(topic, data)
        self._routes[topic] = route
        self._brokers.update(route.brokers)
        addresses = [address for by_id in route.brokers.values() for address in by_id.values()]
        if self._heartbeat is not None and not self._registered.issuperset(addresses):
            self.run(self.send_heartbeats())
        return route

    def cached_route(self, topic: str) -> Route | None:
        """Return the cached route of a topic, or None."""
        return self._routes.get(topic)

    def evict_route(self, topic: str) -> None:
        """Remove the cached route of a topic, so that the next use fetches the route."""
        self._routes.pop(topic, None)

    @property
    def has_brokers(self) -> bool:
        """Return True if any broker is in a cached route."""
        return bool(self._brokers)

    def address(self, broker_name: str, broker_id: int = MASTER_ID, *, any_id: bool = False) -> str:
        """Return the address of a broker.

        With ``any_id`` another broker of that name is accepted if this one is unknown. Raises NoRouteError.
        """
        addresses = self._brokers.get(broker_name, {})
        address = addresses.get(broker_id) or (next(iter(addresses.values()), None) if any_id else None)
        if address is None:
            raise NoRouteError(broker_name, f"no broker of this name with id {broker_id} is known")
        return address

    async def broker_of(self, queue: MessageQueue, *, any_id: bool = False) -> str:
        """Return the address of a queue's master, with ``any_id`` of a slave if there is no master.

        Fetches the topic's route if the broker is missing. Raises NoRouteError, TransportError.
        """
        if queue.broker_name not in self._brokers:
            await self.refresh_route(queue.topic)
        return self.address(queue.broker_name, any_id=any_id)

    async def register_at_brokers(self, topics: Iterable[str]) -> BrokerError | None:
        """Fetch the routes of topics, and send heartbeats to their brokers; topics without a route are skipped.

        Return the error of a broker that refuses the client, such as for wrong credentials. Raises TransportError.
        """
        for topic in list(topics):
            with suppress(NoRouteError):
                await self.route(topic)
        return await self.send_heartbeats()

    async def check_access(self) -> None:
        """Check by an empty heartbeat to all masters that this client may send requests. Raises BrokerError (code 16).

        Unreachable brokers are skipped.
        """
        body = encode_body(HeartbeatData(client_id=self.client_id))
        heartbeats = (self.request(address, RequestCode.HEART_BEAT, None, body) for address in self.masters())
        refusal = _refusal(await asyncio.gather(*heartbeats, return_exceptions=True))
        if refusal is not None:
            raise refusal

    async def send_heartbeats(self) -> BrokerError | None:
        """Send heartbeats to all masters of cached routes, and heartbeats of consumers also to slaves."""
        data = None if self._heartbeat is None else self._heartbeat()
        if data is None:
            return None
        body = encode_body(data)
        addresses = [
            address
            for by_id in list(self._brokers.values())
            for broker_id, address in by_id.items()
            if broker_id == MASTER_ID or data.consumer_data_set
        ]
        responses = await asyncio.gather(
            *(self.request(address, RequestCode.HEART_BEAT, None, body) for address in addresses),
            return_exceptions=True,
        )
        for address, response in zip(addresses, responses, strict=True):
            if isinstance(response, BaseException):
                # A broker without permission refuses each request, so that the caller's request raises the error.
                level = logging.DEBUG if is_refusal(response) else logging.WARNING
                log.log(level, "heartbeat to %s failed: %s", address, response)
            else:
                self._registered.add(address)
        return _refusal(responses)

    def _on_disconnect(self, address: str) -> None:
        """Re-register after a disconnect: the broker has unregistered the client."""
        if address in self._registered and not self._is_closing and address not in self._reconnecting:
            self._reconnecting.add(address)
            self.run(self._send_heartbeat_after_reconnect(address))

    async def _send_heartbeat_after_reconnect(self, address: str) -> None:
        """Send a heartbeat as soon as a broker is back. Source: ``MQClientInstance``, ``onChannelConnect``."""
        try:
            while any(address in by_id.values() for by_id in self._brokers.values()):
                await asyncio.sleep(_RECONNECT_RETRY_S)
                data = None if self._heartbeat is None else self._heartbeat()
                if data is None:
                    return
                try:
                    await self.request(address, RequestCode.HEART_BEAT, None, encode_body(data))
                    return
                except RemotingError as error:
                    log.debug("heartbeat to %s failed: %s", address, error)
        finally:
            self._reconnecting.discard(address)

    def masters(self) -> list[str]:
        """Return the addresses of all masters of cached routes."""
        return [by_id[MASTER_ID] for by_id in self._brokers.values() if MASTER_ID in by_id]

    async def to_masters(self, code: int, fields: Fields) -> None:
        """Send a request to all masters; skip unreachable ones."""
        await asyncio.gather(
            *(self.request(address, code, fields) for address in self.masters()), return_exceptions=True
        )


def _refusal(responses: Iterable[object]) -> BrokerError | None:
    """Return the first refusal for lack of permission among responses; None without one."""
    return next(
        (response for response in responses if isinstance(response, BrokerError) and is_refusal(response)), None
    )


def _client_id(options: ClientOptions, has_fixed_instance_name: bool) -> str:
    """Build ``ip@instance[@unit]``; without an instance name Java uses the process id and nanoseconds."""
    instance = options.instance_name
    if instance == DEFAULT_INSTANCE and not has_fixed_instance_name:
        instance = f"{os.getpid()}#{time.monotonic_ns()}.{next(_INSTANCES)}"
    return "@".join(part for part in (local_ip(), instance, options.unit_name) if part)
