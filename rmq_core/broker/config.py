"""Settings of a broker, its access control and its store, from one file, the environment and the command line.

Source: ``BrokerConfig``, ``AuthConfig``.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Any, Final

from rmq_core.broker.ignored_keys import FIXED_VALUES, IGNORED
from rmq_core.ha.settings import HaSettings
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.codec import BodyStruct, decode_body
from rmq_core.remoting.codes import MASTER_ID
from rmq_core.remoting.settings import load_settings, setting
from rmq_core.store.config import JAVA_NAMES, STORE_PROPERTIES, StoreConfig
from rmq_formats.codecs.index import AUTO
from rmq_formats.errors import DecodeError, OptionError
from rmq_formats.storage.settings_file import read_settings_file

_BROKER_CREDENTIALS_KEY: Final = "innerClientAuthenticationCredentials"
_FIRST_USER_KEY: Final = "initAuthenticationUser"
ENVIRONMENT_PREFIX: Final = "RMQ_BROKER_"
FAST_PORT_DISTANCE: Final = 2  # the fast port, which refuses pulls, is so much below the listen port
_MAX_PORT: Final = 65535
_TIMER_PRECISIONS_MS: Final = (100, 200, 500, 1000)
_SLAVE: Final = "SLAVE"
_ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER", _SLAVE)
_APPEND_TOPIC: Final = ("true", "false", AUTO)
_HOST_NAME: Final = re.compile(r"[0-9A-Za-z_.-]+")  # or an IPv4 address


class _UserText(BodyStruct, frozen=True, kw_only=True):
    username: str
    password: str


class _CredentialsText(BodyStruct, frozen=True, kw_only=True):
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True)
class AccessSettings(HaSettings):
    """Settings of authentication and authorization; names and defaults are Java's.

    Attributes:
        authentication_enabled: requests must be signed by a user of the broker.
        authorization_enabled: a user's policies are checked, too; requires ``authentication_enabled``.
        authentication_whitelist: request codes without signature and policies, separated by commas.
        authorization_whitelist: request codes without policies, separated by commas.
        init_authentication_user: ``{"username":"…","password":"…"}``, a super user who is created if missing.
        inner_client_authentication_credentials: ``{"accessKey":"…","secretKey":"…"}``, likewise; the broker signs its
            requests to its master and to name servers with it.
    """

    authentication_enabled: bool = setting(False)
    authorization_enabled: bool = setting(False)
    authentication_whitelist: str = setting("")
    authorization_whitelist: str = setting("")
    init_authentication_user: str = setting("", is_secret=True)
    inner_client_authentication_credentials: str = setting("", is_secret=True)

    @property
    def broker_credentials(self) -> Credentials | None:
        """Credentials of the broker's own requests. Raises OptionError."""
        text = self.inner_client_authentication_credentials
        if not text:
            return None
        credentials = _parse_setting(text, _CredentialsText, _BROKER_CREDENTIALS_KEY)
        return Credentials(credentials.access_key, credentials.secret_key)

    def check_access(self) -> None:
        """Check that the settings fit together. Raises OptionError."""
        if self.authorization_enabled and not self.authentication_enabled:
            problem = "users are known by their signatures"
            raise OptionError(f"authorizationEnabled=true requires authenticationEnabled=true: {problem}")
        whitelist(self.authentication_whitelist, "authenticationWhitelist")
        whitelist(self.authorization_whitelist, "authorizationWhitelist")
        initial_super_users(self)


def whitelist(text: str, name: str) -> frozenset[int]:
    """Parse request codes, separated by commas. Raises OptionError that has the setting's name."""
    codes = [code.strip() for code in text.split(",") if code.strip()]
    invalid = [code for code in codes if not code.isascii() or not code.isdigit()]
    if invalid:
        raise OptionError(f"{name}: no request code: {invalid[0]!r}")
    return frozenset(map(int, codes))


def initial_super_users(settings: AccessSettings) -> list[tuple[str, str]]:
    """Return name and password of the super users in the settings. Raises OptionError."""
    credentials = []
    if settings.init_authentication_user:
        user = _parse_setting(settings.init_authentication_user, _UserText, _FIRST_USER_KEY)
        credentials.append((user.username, user.password))
    broker_credentials = settings.broker_credentials
    if broker_credentials is not None:
        credentials.append((broker_credentials.access_key, broker_credentials.secret_key))
    if any(not name.strip() or not password for name, password in credentials):
        raise OptionError(f"{_FIRST_USER_KEY} or {_BROKER_CREDENTIALS_KEY}: a name or password is empty")
    return credentials


def _parse_setting(text: str, kind: type[Any], name: str) -> Any:
    try:
        return decode_body(text.encode(), kind)
    except DecodeError:  # the text of this error could contain the secret
        members = ", ".join(f'"{member}":"…"' for member in kind.__struct_encode_fields__)
        raise OptionError(f"{name}: is not JSON of the form {{{members}}}") from None


@dataclass(frozen=True, slots=True)
class BrokerConfig(AccessSettings):
    """Settings of a broker. Names, units and defaults are Java's, but for ``bind_address`` and ``max_…``.

    Attributes:
        bind_address: the address to listen on; 0.0.0.0 for all.
        listen_port: 0 for a free port. The broker also listens two ports below, for requests other than pulls.
        broker_ip1: address advertised to clients; that of ``bind_address`` if empty.
        broker_ip2: address or name advertised to slaves; that of ``broker_ip1`` if empty.
        broker_name: name of a master and its slaves; with a topic and a queue id, it identifies a queue in the cluster.
        broker_id: 0 for a master; each of its slaves has another id.
        broker_role: ASYNC_MASTER, SYNC_MASTER, whose sends wait for ``in_sync_replicas``, or SLAVE.
        namesrv_addr: ``host:port`` of name servers, separated by semicolons; empty for none.
        broker_permission: 4 read, 2 write.
        default_topic_queue_nums: queues of the template topic, and maximal queues of a created topic.
        cluster_topic_enable: the topic with the cluster's name can be read and written.
        broker_topic_enable: the topic with the broker's name can be read and written.
        revive_queue_num: queues of the revive topic of POP.
        timer_precision_ms: length of the timer wheel's intervals; 100, 200, 500 or 1000, other values count
            as the next lower one.
        timer_roll_window_slots: a timer message that is due so many intervals ahead rolls: it is stored again before.
        timer_flush_interval_ms: how often the timer checkpoint is written.
        timer_congest_num_each_slot: number of messages in an interval above which some are refused; above twice the
            number, all.
        timer_stop_enqueue: do not enqueue timer messages; they wait in their topic.
        timer_stop_dequeue: do not deliver timer messages; they wait in the wheel.
        append_topic_for_timer_delete_key: ``true`` stores a recall with its topic, as 5.3.3 does; ``false`` without the
            topic, as brokers from 5.4 on do by default; ``auto`` decides by the store. This broker reads both.
        enable_single_topic_register: a change registers all topics instead of the changed ones, for name servers with
            deleteTopicWithBrokerRegistration. (The original registers each changed topic in its own request then.)
        sync_flush_timeout_ms: how long a send waits for the disk with SYNC_FLUSH.
        enable_property_filter: SQL92 subscriptions are accepted.
        filter_support_retry: messages of a retry topic are filtered by the group's SQL92 subscription of their original
            topic.
        expect_consumer_num_use_filter: number of groups with SQL92 subscriptions for which a bit map is sized.
        max_error_rate_of_bloom_filter: false positives of such a bit map, percent.
        filter_data_clean_time_span_ms: retention of the filter of a group without members.
        long_polling_enable: a pull waits for messages as long as requested.
        broker_fast_failure_enable: requests that have waited too long for the event loop are refused.
        wait_time_mills_in_…_queue: maximal wait of a request for the event loop, ms: of a send; a pull or pop; a pull
            with code 361; a heartbeat; the end of a transaction; an acknowledgement; a request of mqadmin.
        short_polling_time_ms: maximal wait of a parked pull without long polling.
        estimate_accumulation: the lag of groups with filters counts only messages that may match.
        channel_expired_timeout_ms: time without heartbeats after which a client is disconnected.
        region_id: the property MSG_REGION of each message.
        trace_on: the property TRACE_ON of each message.
        transaction_timeout_ms: age of a half message at its first check.
        transaction_op_max_bytes: size at which an op message, which records ended transactions, is written at once.
        transaction_op_batch_interval_ms: how often smaller op messages are written.
        max_expression_chars: maximal characters of a subscription's tags or SQL92 expression, or of a heartbeat's SQL92
            expressions together; the parser needs a second for 200,000.
        max_held_pulls: maximal number of waiting pulls; further pulls get a response at once.
        max_lite_subscription_count: maximal number of all clients' subscriptions to lite topics, and of such clients.
        min_lite_ttl_ms: minimal time after its last message, and after the start, before a lite topic is deleted.
        lite_ttl_check_interval_ms: interval of searches for expired lite topics.
        lite_event_check_interval_ms: interval of reassignments of events to other clients.
        lite_subscription_check_interval_ms: interval of checks for inactive lite clients.
        lite_subscription_check_timeout_ms: time without a subscription after which a lite client is removed.
    """

    bind_address: str = setting("127.0.0.1")
    listen_port: int = setting(10911, high=_MAX_PORT)
    broker_ip1: str = setting("", java="brokerIP1")
    broker_ip2: str = setting("", java="brokerIP2")
    broker_name: str = setting("broker-a")
    broker_cluster_name: str = setting("DefaultCluster")
    broker_id: int = setting(0)
    broker_role: str = setting("ASYNC_MASTER")
    namesrv_addr: str = setting("")
    broker_permission: int = setting(6, high=7, mutable=True)
    auto_create_topic_enable: bool = setting(True, mutable=True)
    auto_create_subscription_group: bool = setting(True, mutable=True)
    default_topic_queue_nums: int = setting(8, low=1, high=65536)
    cluster_topic_enable: bool = setting(True)
    broker_topic_enable: bool = setting(True)
    trace_topic_enable: bool = setting(False)
    msg_trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC")
    revive_queue_num: int = setting(8, low=1)
    timer_wheel_enable: bool = setting(True)
    timer_precision_ms: int = setting(1000)
    timer_max_delay_sec: int = setting(259_200, mutable=True)
    timer_roll_window_slots: int = setting(172_800, java="timerRollWindowSlot")
    timer_log_file_bytes: int = setting(100 << 20, java="mappedFileSizeTimerLog", low=68)
    timer_flush_interval_ms: int = setting(1000, low=10)
    timer_congest_num_each_slot: int = setting((1 << 31) - 1, mutable=True)
    timer_stop_enqueue: bool = setting(False, mutable=True)
    timer_stop_dequeue: bool = setting(False, mutable=True)
    recall_message_enable: bool = setting(False, mutable=True)
    append_topic_for_timer_delete_key: str = setting(AUTO)
    register_name_server_period_ms: int = setting(30_000, java="registerNameServerPeriod", low=1000)
    register_broker_timeout_ms: int = setting(24_000, java="registerBrokerTimeoutMills", low=1)
    compressed_register: bool = setting(False)
    enable_single_topic_register: bool = setting(False, mutable=True)
    flush_consumer_offset_interval_ms: int = setting(5000, java="flushConsumerOffsetInterval", low=10)
    flush_delay_offset_interval_ms: int = setting(10_000, java="flushDelayOffsetInterval", low=10)
    sync_flush_timeout_ms: int = setting(5000, java="syncFlushTimeout", low=1)
    enable_property_filter: bool = setting(False)
    enable_mixed_message_type: bool = setting(False)
    filter_support_retry: bool = setting(False)
    expect_consumer_num_use_filter: int = setting(32, low=1, high=4096)
    max_error_rate_of_bloom_filter: int = setting(20, low=1, high=99)
    filter_data_clean_time_span_ms: int = setting(86_400_000, java="filterDataCleanTimeSpan")
    long_polling_enable: bool = setting(True, mutable=True)
    broker_fast_failure_enable: bool = setting(True, mutable=True)
    wait_time_mills_in_send_queue: int = setting(200, mutable=True)
    wait_time_mills_in_pull_queue: int = setting(5000, mutable=True)
    wait_time_mills_in_lite_pull_queue: int = setting(5000, mutable=True)
    wait_time_mills_in_heartbeat_queue: int = setting(31_000, mutable=True)
    wait_time_mills_in_transaction_queue: int = setting(3000, mutable=True)
    wait_time_mills_in_ack_queue: int = setting(3000, mutable=True)
    wait_time_mills_in_admin_broker_queue: int = setting(5000, mutable=True)
    short_polling_time_ms: int = setting(1000, java="shortPollingTimeMills", mutable=True)
    estimate_accumulation: bool = setting(True, mutable=True)
    notify_consumer_ids_changed_enable: bool = setting(True, mutable=True)
    channel_expired_timeout_ms: int = setting(120_000, java="channelExpiredTimeout", low=1000)
    region_id: str = setting("DefaultRegion")
    trace_on: bool = setting(True)
    reject_transaction_message: bool = setting(False, mutable=True)
    transaction_timeout_ms: int = setting(6000, java="transactionTimeOut", mutable=True)
    transaction_check_max: int = setting(15, mutable=True)
    transaction_check_interval_ms: int = setting(30_000, java="transactionCheckInterval", low=10)
    transaction_op_max_bytes: int = setting(4096, java="transactionOpMsgMaxSize", low=1, high=1 << 20, mutable=True)
    transaction_op_batch_interval_ms: int = setting(3000, java="transactionOpBatchInterval", low=10)
    max_expression_chars: int = setting(16_384, low=1)
    max_held_pulls: int = setting(200_000)
    max_lite_subscription_count: int = setting(100_000)
    max_client_event_count: int = setting(100, low=1)
    min_lite_ttl_ms: int = setting(900_000, java="minLiteTTl")
    lite_ttl_check_interval_ms: int = setting(120_000, java="liteTtlCheckInterval", low=10)
    lite_event_check_interval_ms: int = setting(10_000, java="liteEventCheckInterval", low=10)
    lite_subscription_check_interval_ms: int = setting(120_000, java="liteSubscriptionCheckInterval", low=10)
    lite_subscription_check_timeout_ms: int = setting(180_000, java="liteSubscriptionCheckTimeoutMills")

    @property
    def is_slave(self) -> bool:
        return self.broker_role == _SLAVE

    @property
    def timer_precision(self) -> int:
        """The effective timer precision, ms. Source: ``MessageStoreConfig#setTimerPrecisionMs``."""
        precisions_ms = [value_ms for value_ms in _TIMER_PRECISIONS_MS if value_ms <= self.timer_precision_ms]
        return max(precisions_ms, default=100)

    @property
    def namesrvs(self) -> list[str]:
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]


def load_config(
    store: str | None,
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """Load the settings of broker and store from all sources; return both, and the file's ignored keys.

    Args:
        store: directory of the store; None if the file names it.
        file: Java's ``broker.conf`` properties, or TOML.
        flags: by the name of the broker's setting.

    Raises:
        OptionError: a key is unknown, or a value is invalid; the text names the source.
    """
    of_store = {name: java for java, (name, _) in STORE_PROPERTIES.items()} | {java: java for java in STORE_PROPERTIES}
    config, passed_over = load_settings(
        BrokerConfig,
        file=file,
        environ=os.environ if environ is None else environ,
        prefix=ENVIRONMENT_PREFIX,
        flags=flags,
        ignored=IGNORED | of_store.keys(),
        fixed_values=FIXED_VALUES,
    )
    if config.append_topic_for_timer_delete_key not in _APPEND_TOPIC:
        choices, setting_text = ", ".join(_APPEND_TOPIC), config.append_topic_for_timer_delete_key
        raise OptionError(f"{file}: appendTopicForTimerDeleteKey is one of {choices}, not {setting_text!r}")
    _check_role(config, file)
    config.check_access()
    properties = {}
    for key, value in (read_settings_file(file) if file else {}).items():
        if key in of_store:
            properties[of_store[key]] = str(value).lower() if isinstance(value, bool) else str(value)
    if store is not None:
        if properties.get("storePathRootDir", store) != store:
            properties.pop("storePathCommitLog", None)  # of the file's store, which the option replaces
        properties["storePathRootDir"] = store
    elif "storePathRootDir" not in properties:
        raise OptionError("no store directory: give --store, or set storePathRootDir in the file")
    for key in ("storePathRootDir", "storePathCommitLog"):
        if key in properties:
            properties[key] = os.path.expanduser(properties[key])  # noqa: PTH111 # as a shell does
    if Path(properties["storePathRootDir"]).is_file():
        raise OptionError(f"{properties['storePathRootDir']}: is a file, not the directory of a store")
    store_config = replace(StoreConfig.from_properties(properties), slave=config.is_slave)
    return config, store_config, [key for key in passed_over if key not in of_store]


def _check_role(config: BrokerConfig, file: Path | None) -> None:
    """Check that role, broker id and addresses fit together. Raises OptionError.

    Source: ``BrokerStartup#buildBrokerController``, which silently sets a master's id to 0.
    """
    if config.broker_role not in _ROLES:
        raise OptionError(f"{file}: brokerRole is one of {', '.join(_ROLES)}, not {config.broker_role!r}")
    if config.is_slave != (config.broker_id != MASTER_ID):
        raise OptionError(
            f"{file}: brokerRole={config.broker_role} with brokerId={config.broker_id}: "
            "only a master has the id 0, and a slave has another"
        )
    host, _, port = config.ha_master_address.rpartition(":")
    if config.ha_master_address and not (host and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
        raise OptionError(f"{file}: haMasterAddress is not host:port: {config.ha_master_address!r}")
    if config.broker_ip2 and not _is_host(config.broker_ip2):
        raise OptionError(f"{file}: brokerIP2 is no address: {config.broker_ip2!r}")


def _is_host(text: str) -> bool:
    try:
        return _HOST_NAME.fullmatch(text) is not None or bool(IPv6Address(text))
    except AddressValueError:
        return False


def store_properties(config: StoreConfig) -> dict[str, str]:
    """Return a store's settings as ``broker.conf`` properties: Java's names, values as text."""
    properties = {}
    for name, java in JAVA_NAMES.items():
        value = getattr(config, name)
        properties[java] = str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    return properties
