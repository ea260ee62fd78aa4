"""Settings of the name server."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_core.remoting.settings import ServerSettings, load_settings, setting

ENVIRONMENT_PREFIX: Final = "RMQ_NAMESRV_"
_MAX_PORT: Final = 65535

# Keys that a file for the original may have: threads, buffers and parts that this server does not have.
IGNORED: Final = frozenset(
    [
        "rocketmqHome",
        "configStorePath",
        "productEnvName",
        "clientRequestThreadPoolNums",
        "defaultThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "defaultThreadPoolQueueCapacity",
        "unRegisterBrokerQueueCapacity",
        "channelNotActiveInterval",
        "clientAsyncSemaphoreValue",
        "clientCallbackExecutorThreads",
        "clientChannelMaxIdleTimeSeconds",
        "clientCloseSocketIfTimeout",
        "clientOnewaySemaphoreValue",
        "clientPooledByteBufAllocatorEnable",
        "clientSocketRcvBufSize",
        "clientSocketSndBufSize",
        "clientWorkerThreads",
        "connectTimeoutMillis",
        "disableCallbackExecutor",
        "disableNettyWorkerGroup",
        "enableReconnectForGoAway",
        "enableShutdownGracefully",
        "isScanAvailableNameSrv",
        "maxReconnectIntervalTimeSeconds",
        "scanAvailableNameSrv",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "useEpollNativeSelector",
        "writeBufferLowWaterMark",
    ]
)

# Keys that promise what this server does not have, and the value that promises nothing: any other is refused.
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
        bind_address: the address to listen on; 0.0.0.0 is all.
        listen_port: 0 takes a free one.
        max_registration_topics: of a broker; ten times as many as brokers of the original are known to bear.
        max_kv_config_bytes: of the key-value configuration, whose file is written whole at each change.
        kv_config_path: file of the key-value configuration; ``~`` is the user's home.
        order_message_enable: whether routes contain the order configuration of their topics.
        return_order_topic_config_to_broker: whether a registration is answered with it.
        enable_all_topic_list: whether the list of all topics may be asked for.
        enable_topic_list: whether the lists of topics by cluster and kind may be asked for.
        support_acting_master: whether a slave stands for its missing master in routes.
        delete_topic_with_broker_registration: whether topics that a broker no longer registers are deleted.
        notify_min_broker_id_changed: whether brokers are notified when the least id of their group changes.
        need_wait_for_service: whether routes are withheld for some time after the start.
        wait_seconds_for_service: that time, s.
        scan_not_active_broker_interval_ms: how often brokers are checked for their expiry, ms.
    """

    bind_address: str = setting("127.0.0.1")
    listen_port: int = setting(9876, high=_MAX_PORT)
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
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[NamesrvConfig, list[str]]:
    """Load the settings of all sources; return them and the ignored keys of the file.

    Raises:
        OptionError: an unknown key or a bad value, and where.
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
