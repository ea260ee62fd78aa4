"""Settings of the name server."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_core.remoting.settings import ServerSettings, load_settings, setting

ENVIRONMENT_PREFIX: Final = "RMQ_NAMESRV_"

# Java's keys for threads, buffers and parts that this server does not have.
IGNORED: Final = frozenset(
    """
    rocketmqHome configStorePath productEnvName clientRequestThreadPoolNums defaultThreadPoolNums
    clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
    clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
    clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
    enableReconnectForGoAway enableShutdownGracefully isScanAvailableNameSrv maxReconnectIntervalTimeSeconds
    scanAvailableNameSrv serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds useEpollNativeSelector
    writeBufferLowWaterMark
    """.split()  # noqa: SIM905
)

# Java's keys for features that this server does not have, with the only value that is accepted.
FIXED_VALUES: Final = {
    "clusterTest": "false",
    "enableControllerInNamesrv": "false",
    "socksProxyConfig": "{}|",
    "tlsEnable": "false",
    "useTLS": "false",
}


@dataclass(frozen=True, slots=True)
class NamesrvConfig(ServerSettings):
    """Settings of the name server. Names, units and defaults are Java's, but for ``max_…``.

    Attributes:
        bind_address: address to listen on; 0.0.0.0 means all.
        listen_port: port to listen on; 0 means a free one.
        max_kv_config_bytes: maximum size of the key-value configuration, which each change writes whole.
        kv_config_path: file of the key-value configuration; ``~`` is the user's home.
        order_message_enable: add the order configuration of the topic to routes.
        return_order_topic_config_to_broker: add the order configuration to responses to registrations.
        enable_all_topic_list: allow requests for the list of all topics.
        enable_topic_list: allow requests for the topics of a cluster and for unit topics.
        support_acting_master: show a slave as its missing master in routes.
        delete_topic_with_broker_registration: delete topics that a broker no longer registers.
        notify_min_broker_id_changed: notify brokers when the minimum id of their group changes.
        need_wait_for_service: refuse requests for routes for ``wait_seconds_for_service`` after the start.
    """

    bind_address: str = setting("127.0.0.1")
    listen_port: int = setting(9876, high=65_535)
    max_registration_topics: int = setting(32_768, low=1)
    max_kv_config_bytes: int = setting(4 << 20, low=1024)
    kv_config_path: str = setting("~/namesrv/kvConfig.json")
    order_message_enable: bool = setting(False, mutable=True)
    return_order_topic_config_to_broker: bool = setting(True, mutable=True)
    enable_all_topic_list: bool = setting(True, mutable=True)
    enable_topic_list: bool = setting(True, mutable=True)
    support_acting_master: bool = setting(False, mutable=True)
    delete_topic_with_broker_registration: bool = setting(False, mutable=True)
    notify_min_broker_id_changed: bool = setting(False, mutable=True)
    need_wait_for_service: bool = setting(False, mutable=True)
    wait_seconds_for_service: int = setting(45, mutable=True)
    scan_not_active_broker_interval_ms: int = setting(5000, java="scanNotActiveBrokerInterval", low=10)


def load_config(
    file: Path | None = None, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[NamesrvConfig, list[str]]:
    """Load the settings of all sources; return them and the ignored keys of the file.

    Raises:
        OptionError: unknown key or bad value; the message names its source.
    """
    return load_settings(
        NamesrvConfig,
        file=file,
        environ=os.environ if environ is None else environ,
        prefix=ENVIRONMENT_PREFIX,
        flags=flags,
        ignored=IGNORED,
        fixed_values=FIXED_VALUES,
    )
