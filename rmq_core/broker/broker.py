"""The broker as a whole: opens the store, runs remoting servers and periodic tasks, and shuts down in order."""

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from rmq_core.broker.access.accounts import Accounts
from rmq_core.broker.access.guard import Guard, GuardedTable, PushRights, guard_all
from rmq_core.broker.access.required_permissions import CHANGES
from rmq_core.broker.addresses import free_ports, local_address
from rmq_core.broker.cluster.registration import Registration
from rmq_core.broker.cluster.slave_sync import SlaveSync, slave_refusals
from rmq_core.broker.config import FAST_PORT_DISTANCE, BrokerConfig, initial_super_users
from rmq_core.broker.fast_failure import fail_fast
from rmq_core.broker.lite.service import LiteService
from rmq_core.broker.parked_requests import PullLongPolling
from rmq_core.broker.pop.revive import REVIVE_S
from rmq_core.broker.pop.service import PopService
from rmq_core.broker.processors.access_admin import access_handlers
from rmq_core.broker.processors.broker_admin import BrokerAdmin
from rmq_core.broker.processors.client_manage import ClientManageProcessor, ProxiedClientProcessor
from rmq_core.broker.processors.durable_responder import DurableResponder, respond_after_persist
from rmq_core.broker.processors.end_transaction import EndTransactionProcessor
from rmq_core.broker.processors.group_admin import GroupAdmin
from rmq_core.broker.processors.offsets import OffsetProcessor
from rmq_core.broker.processors.pull import PullMessageProcessor
from rmq_core.broker.processors.put_message import MessageWriter
from rmq_core.broker.processors.query_message import QueryMessageProcessor
from rmq_core.broker.processors.recall import RecallMessageProcessor
from rmq_core.broker.processors.reply import ReplyMessageProcessor
from rmq_core.broker.processors.send import SendBackProcessor, SendMessageProcessor
from rmq_core.broker.processors.topic_admin import TopicAdmin
from rmq_core.broker.replication import TICK_S, DiskWaiters, Dispatching, Replication
from rmq_core.broker.slices import SLICE_S
from rmq_core.broker.state import BrokerState, WallClock
from rmq_core.broker.tables.clients import Consumers, Producers, QueueLocks
from rmq_core.broker.tables.consumer_offsets import ConsumerOffsets
from rmq_core.broker.tables.stats import SAMPLE_S, Stats
from rmq_core.broker.tables.subscription_groups import Groups
from rmq_core.broker.tables.table_file import TableFiles, log
from rmq_core.broker.tables.timer_admission import DelayLevels, TimerAdmission
from rmq_core.broker.tables.topics import Topics
from rmq_core.broker.timer.schedule import INTERVAL_S, Schedule
from rmq_core.broker.timer.service import Timers
from rmq_core.broker.transaction.check import TransactionChecks
from rmq_core.broker.transaction.half import OpMessageWriter
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.clock import steady_ms as machine_steady_ms
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler, address_text
from rmq_core.remoting.errors import ListenError
from rmq_core.remoting.loop import Service, work_clock
from rmq_core.remoting.server import RemotingServer
from rmq_core.remoting.settings import local_only
from rmq_core.store.config import StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.hosts import Host
from rmq_formats.errors import DecodeError

_EXPIRY_S: Final = 0.1  # interval of checks of sends that wait for the disk
_PULL_EXPIRY_S: Final = 0.5  # interval of checks of parked pulls
_HOUSEKEEPING_S: Final = 10.0
_DELETED_FILES_S: Final = 0.1  # interval of removals of deleted topics' files
_MORE_DELETED_FILES_S: Final = 0.01  # the same while files remain
_TABLE_RETRY_S: Final = 1.0  # interval of retries of unwritten topics and groups
_TOPIC_CREATING_CODES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.HEART_BEAT,
    RequestCode.PROXIED_CLIENTS, RequestCode.CONSUMER_SEND_MSG_BACK,
)  # fmt: skip
_TOPIC_CHANGING_CODES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
)  # fmt: skip
_GROUP_CHANGING_CODES: Final = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST,
)  # fmt: skip
_NOT_ON_FAST_PORT: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
# Requests that may have large bodies, see ``ServerSettings.limit_bodies``. A pull's body is not read; without a check
# pulls are faster.
_CODES_WITH_MESSAGES: Final = frozenset({
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2, *_NOT_ON_FAST_PORT,
})  # fmt: skip
_CODES_WITH_LISTS: Final = frozenset({
    RequestCode.HEART_BEAT, RequestCode.PROXIED_CLIENTS, RequestCode.LITE_SUBSCRIPTION_CTL, RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST,
})  # fmt: skip


class Broker(Service):
    """A broker on the running event loop; use it with ``async with``, or start and close it.

    Clients get ``address``, the broker listens on ``bound_address``; both are ``host:port``, empty before the start.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock_ms: Callable[[], int] = now_ms,
        disk: Disk | None = None,
        threads: Threads | None = None,
        steady_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create a broker; ``start`` opens its store and listens. A given ``clock_ms`` is also the steady clock."""
        self.address = self.bound_address = ""
        self._config = config
        self._store_config = store_config
        self._clock_ms = clock_ms
        self._steady_ms = steady_ms or (machine_steady_ms if clock_ms is now_ms else clock_ms)
        self._disk = disk or Disk()
        self._threads = threads or Threads()
        self._periodic_calls: dict[str, asyncio.TimerHandle] = {}

    async def start(self) -> None:
        """Open the store, listen, and register with the name servers.

        Raises:
            ListenError: the broker cannot listen at an address.
            StoreError: another process has the store open, its files have other sizes, or kernels cannot be loaded.
            OSError: the disk is full or broken, or the directory cannot be written.
        """
        config = self._config
        async with AsyncExitStack() as closing_steps:
            port, sockets = config.listen_port, None
            if not port:
                sockets = free_ports(config.bind_address)
                port = int(sockets[0].getsockname()[1])
                for bound_socket in sockets:
                    closing_steps.callback(bound_socket.close)
            host = self._advertised_host(port)
            now_ms, disk, threads = self._clock_ms(), self._disk, self._threads
            self.store = MessageStore.open(self._store_config, now_ms, store_host=host, disk=disk, threads=threads)
            log_recovery(self.store)
            closing_steps.callback(self._shut_down_store)
            self._build(host)
            closing_steps.push_async_callback(self._save)
            closing_steps.push_async_callback(self.state.replication.close)
            closing_steps.push_async_callback(self._server.close)
            closing_steps.push_async_callback(self.state.replication.drain)
            closing_steps.push_async_callback(self._waiters.drain)
            await self._listen(port, sockets)
            await self.state.replication.start(port)
            closing_steps.push_async_callback(self.registration.close)
            await self.registration.start()
            if config.is_slave:
                slave_sync = SlaveSync(self.state, self._schedule, self._pop.assignment.adopt)
                closing_steps.push_async_callback(slave_sync.close)
                slave_sync.start()
            closing_steps.push_async_callback(self.checks.close)
            closing_steps.push_async_callback(self.state.files.drain)
            closing_steps.callback(self._stop_periodic_work)
            self._start_periodic_work()
            self._closing_steps = closing_steps.pop_all()
        self.address = self.state.address
        log.info(
            "broker %(broker)s listens on %(address)s%(advertised)s",
            {"broker": config.broker_name, "address": self.bound_address, "advertised": self._advertised_address()},
        )

    def _advertised_address(self) -> str:
        return "" if self.address == self.bound_address else f", advertised as {self.address}"

    @property
    def listen_and_advertised_address(self) -> str:
        """The address to listen on and, if different, the one advertised to clients."""
        return f"{self.bound_address}{self._advertised_address()}"

    async def close(self) -> None:
        await self._closing_steps.aclose()

    def _build(self, host: Host) -> None:
        config, store, steady_ms = self._config, self.store, self._steady_ms
        clock_ms = WallClock(self._clock_ms, steady_ms, lambda: store.max_physical_offset)
        files = TableFiles(store.config.root, store.disk, self._threads)
        self._accounts = Accounts(files) if config.authentication_enabled else None
        guard = None
        if self._accounts is not None:
            self._accounts.create_super_users(initial_super_users(config))
            guard = Guard(config, self._accounts, store, steady_ms)
        self.state = BrokerState(
            config=config,
            store=store,
            store_host=host,
            files=files,
            topics=Topics(files, config, clock_ms, lmq_enabled=store.config.lmq_enabled),
            groups=Groups(files, clock_ms, lmq_enabled=store.config.lmq_enabled),
            offsets=ConsumerOffsets(files, store, clock_ms),
            consumers=Consumers(),
            producers=Producers(),
            locks=QueueLocks(steady_ms),
            stats=Stats(clock_ms, work_clock(asyncio.get_running_loop())),
            replication=Replication(store, config, clock_ms),
            clock_ms=clock_ms,
            steady_ms=steady_ms,
            rights=PushRights(guard),
        )
        self._parked_pulls = PullLongPolling(self.state)
        self._dispatching = Dispatching(self.state.replication, store)
        self.state.dispatch = self._dispatching.run
        self._waiters = DiskWaiters(store, config.sync_flush_timeout_ms, self.state.dispatch)
        self._client_manager = ClientManageProcessor(self.state)
        self._proxied_clients = ProxiedClientProcessor(self.state, self._client_manager)
        self.registration = Registration(self.state)
        levels = DelayLevels(store)
        self._schedule = Schedule(self.state, levels)
        self._timer_service = (
            Timers(self.state) if config.timer_wheel_enable and config.broker_role != "SLAVE" else None
        )
        count_due = None if self._timer_service is None else self._timer_service.files.wheel.count
        self.state.timers = TimerAdmission(lambda: self.state.config, clock_ms, count_due)
        self._pop = PopService(self.state, self._timer_service, self.registration.route)
        self._lite = LiteService(self.state)
        self.op_messages = OpMessageWriter(self.state)
        self.checks = TransactionChecks(self.state, self.op_messages)
        # Signatures are checked first, then the limits of bodies, then policies, which decode bodies.
        handlers = config.limit_bodies(
            self._require_permissions(guard, self._handlers(levels)),
            with_lists=_CODES_WITH_LISTS,
            with_messages=_CODES_WITH_MESSAGES,
        )
        if guard is not None:
            handlers = {code: guard.require_signature(handler) for code, handler in handlers.items()}
        for code in _TOPIC_CHANGING_CODES:
            handlers[code] = respond_after_persist(handlers[code], self.state.topics)
        for code in _GROUP_CHANGING_CODES:
            handlers[code] = respond_after_persist(handlers[code], self.state.groups)
        for code in _TOPIC_CREATING_CODES:
            handlers[code] = self.registration.respond_after_registration(handlers[code])
        if config.is_slave:
            handlers |= guard_all(guard, slave_refusals())
        state = self.state
        handlers = {
            code: fail_fast(code, handler, lambda: state.config, state.page_cache, state.stats.times.now_s)
            for code, handler in handlers.items()
        }
        self._server = RemotingServer(
            handlers if guard is None else GuardedTable(handlers, guard),
            limits=config.limits,
            on_disconnect=self._remove_connection,
            after_batch=self.state.dispatch,
            tls=config.tls.server(),
        )
        fast_port_handlers = {code: handler for code, handler in handlers.items() if code not in _NOT_ON_FAST_PORT}
        self._fast_handlers = fast_port_handlers if guard is None else GuardedTable(fast_port_handlers, guard)
        self._update_batch_topics()
        self.state.topics.on_change(self._update_batch_topics)
        store.on_dispatched(self._parked_pulls.on_arrivals, self._parked_pulls.is_waiting)
        store.on_dispatched(self._pop.polls.on_arrivals, self._pop.polls.is_waiting)
        files.start()

    def _update_batch_topics(self, _: Collection[str] | None = None) -> None:
        self.store.set_batch_topics(self.state.topics.batch_topics())

    def _require_permissions(self, guard: Guard | None, handlers: dict[int, Handler]) -> dict[int, Handler]:
        if guard is not None:
            return {code: guard.require_permissions(handler) for code, handler in handlers.items()}
        return handlers if self._config.remote_admin_enable else local_only(handlers, CHANGES)

    def _handlers(self, levels: DelayLevels) -> dict[int, Handler]:
        state = self.state
        writer = MessageWriter(state, levels)
        responder = DurableResponder(state, self._waiters, writer.error_response)
        handlers = {
            **SendMessageProcessor(state, writer, responder, self.registration.delay_after_change).handlers(),
            **ReplyMessageProcessor(state, writer).handlers(),
            **SendBackProcessor(state, levels, responder).handlers(),
            **PullMessageProcessor(state, self._parked_pulls).handlers(),
            **self._pop.handlers(responder),
            **QueryMessageProcessor(state).handlers(),
            **OffsetProcessor(state, self._parked_pulls, self._schedule).handlers(),
            **TopicAdmin(state).handlers(),
            **self._client_manager.handlers(),
            **self._proxied_clients.handlers(),
            **GroupAdmin(state).handlers(),
            **BrokerAdmin(state, self._schedule, self._timer_service).handlers(),
            **RecallMessageProcessor(state, responder).handlers(),
            **EndTransactionProcessor(state, self.op_messages, responder).handlers(),
            **access_handlers(self._accounts),
        }
        return self._lite.handlers(handlers, self.registration.route)

    def _advertised_host(self, port: int) -> Host:
        advertised = self._config.broker_ip1 or local_address(self._config.bind_address)
        try:
            return Host.parse(f"[{advertised}]:{port}" if ":" in advertised else f"{advertised}:{port}")
        except DecodeError as error:
            raise ListenError(f"{advertised}:{port}", "brokerIP1 is no address") from error

    async def _listen(self, port: int, sockets: tuple[socket.socket, socket.socket] | None) -> None:
        """Listen at a port and its fast port; ``sockets`` has both if already bound."""
        if sockets is not None:
            self.bound_address = address_text(await self._server.listen_on(sockets[0]))
            await self._server.listen_on(sockets[1], self._fast_handlers)
            return
        address, fast_port = self._config.bind_address, port - FAST_PORT_DISTANCE
        self.bound_address = address_text(await self._server.listen(address, port))
        if fast_port > 0:
            await self._server.listen(address, fast_port, self._fast_handlers)

    def _shut_down_store(self) -> None:
        is_complete = self.store.shutdown()
        if self.address:
            suffix = "" if is_complete else "; the store needs a recovery"
            # JSON lines have ``complete``, too.
            log.info("broker on %(address)s has stopped" + suffix, {"address": self.address, "complete": is_complete})

    async def _save(self) -> None:
        """Save the periodically saved tables, after running writes."""
        await self.state.files.close()
        self.op_messages.write()
        self._retry_failed_writes()
        self.state.offsets.save()
        self.state.filters.save()
        self._schedule.save()
        self._lite.close()
        self._pop.close()
        if self._timer_service is not None:
            self._timer_service.close()
        self._waiters.close()

    def _start_periodic_work(self) -> None:
        config, state, repeat = self._config, self.state, self._call_periodically
        repeat("expiry of sends that wait for the disk", _EXPIRY_S, self._waiters.expire)
        repeat("expiry of parked pulls", _PULL_EXPIRY_S, lambda: self._parked_pulls.expire(self._steady_ms()))
        repeat("expiry of parked pops", _PULL_EXPIRY_S, self._pop.expire)
        repeat("revival of popped messages", REVIVE_S, self._pop.revive)
        repeat("replication", TICK_S, state.replication.tick)
        if not config.is_slave:  # on a slave, the master delivers
            repeat("delivery of delayed messages", INTERVAL_S, self._schedule.deliver)
        if self._timer_service is not None:
            repeat("delivery of timer messages", config.timer_precision / 10_000, self._timer_service.run)
            repeat("save of the timer checkpoint", config.timer_flush_interval_ms / 1000, self._timer_service.save)
        repeat("save of consumer offsets", config.flush_consumer_offset_interval_ms / 1000, self._save_offsets)
        repeat("save of delay offsets", config.flush_delay_offset_interval_ms / 1000, self._schedule.save)
        op_interval_s = config.transaction_op_batch_interval_ms / 1000
        repeat("write of op messages", op_interval_s, self._write_op_messages)
        repeat("save of filters", _HOUSEKEEPING_S, state.filters.save)
        repeat("save of topics and groups", _TABLE_RETRY_S, self._retry_failed_writes)
        repeat("removal of expired data", _HOUSEKEEPING_S, self._clean_up)
        remove_deleted = partial(self.store.remove_deleted, SLICE_S)
        repeat("removal of deleted topics' files", _DELETED_FILES_S, remove_deleted, _MORE_DELETED_FILES_S)
        for periodic_call in self._lite.periodic_calls():
            repeat(*periodic_call)
        repeat("sampling of stats", SAMPLE_S, state.stats.sample)
        if not config.is_slave:
            self.checks.start()

    def _save_offsets(self) -> None:
        self.state.offsets.save()
        self._pop.orders.save()

    def _write_op_messages(self) -> None:
        self.op_messages.write()
        self.state.dispatch()

    def _retry_failed_writes(self) -> None:
        self.state.topics.file.save()
        self.state.groups.file.save()
        if self._accounts is not None:
            self._accounts.file.save()

    def _stop_periodic_work(self) -> None:
        for timer in self._periodic_calls.values():
            timer.cancel()
        self._periodic_calls.clear()
        self._dispatching.cancel()

    def _remove_connection(self, connection: Connection) -> None:
        self._client_manager.remove_connection(connection)
        self._proxied_clients.remove_connection(connection)
        self._parked_pulls.remove_connection(connection)
        self._pop.polls.remove_connection(connection)
        self._lite.remove_connection(connection)

    def _clean_up(self) -> None:
        self._client_manager.scan_inactive_clients()
        self.state.locks.remove_expired()
        self._pop.clean_order_info()
        self.store.clean(self._clock_ms())

    def _call_periodically(
        self, name: str, seconds: float, function: Callable[[], object], more_seconds: float | None = None
    ) -> None:
        """Call a function periodically, after ``more_seconds`` while it returns True; exceptions are logged."""

        def call() -> None:
            wait_s = seconds
            try:
                if function() and more_seconds is not None:
                    wait_s = more_seconds
            except Exception:
                log.exception("periodic work %(name)s failed", {"name": name})
            self._periodic_calls[name] = asyncio.get_running_loop().call_later(wait_s, call)

        self._periodic_calls[name] = asyncio.get_running_loop().call_later(seconds, call)


def log_recovery(store: MessageStore) -> None:
    """Log the result of the recovery, unless the shutdown was clean."""
    recovery = store.recovery
    if recovery.is_new or (recovery.is_clean and not recovery.damages):
        return
    log.info(
        "the store was not shut down in order: read %(records)d records from %(begin)d to %(end)d in %(seconds).2f s",
        {
            "records": recovery.record_count,
            "begin": recovery.begin_offset,
            "end": recovery.end_offset,
            "seconds": recovery.seconds,
        },
    )
    for damage in recovery.tail:
        log.info("the torn end of the log was cut off: %(damage)s", {"damage": damage})
    for path in recovery.quarantined:
        log.warning("damaged bytes of the log are copied to %(path)s", {"path": path})
