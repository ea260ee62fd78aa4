"""Settings of replication, with the names and defaults of ``MessageStoreConfig`` and ``BrokerConfig``."""

from dataclasses import dataclass

from rmq_core.remoting.access.tls import ServerTls, Tls, TlsFile, TlsMode, read_tls_file
from rmq_core.remoting.settings import ServerSettings, setting
from rmq_formats.errors import OptionError


@dataclass(frozen=True, slots=True)
class HaSettings(ServerSettings):
    """Settings of replication for master and slaves: addresses, batch sizes, timeouts.

    Attributes:
        ha_listen_port: port for slaves; 0 means the port after ``listen_port``, or a free one if ``listen_port`` is 0.
        ha_master_address: ``host:port`` of a slave's master; if empty, a name server gives the address.
        ha_transfer_batch_size: maximum bytes of the log in one push.
        ha_send_heartbeat_interval_ms: interval of heartbeats on an idle connection.
        ha_housekeeping_interval_ms: a connection is closed if the peer sends nothing for so long.
        ha_max_gap_not_in_sync: a slave is in sync if its log lacks fewer bytes than this.
        in_sync_replicas: number of brokers, the master included, that must have a message before a SYNC_MASTER
            responds to its sender; with 1 it waits for no slave.
        slave_timeout_ms: maximum wait of a send request for slaves.
        slave_read_enable: let slaves serve pulls; the master sends consumers that are far behind to them.
        slave_sync_interval_ms: interval at which a slave fetches topics, groups and offsets. Java's is fixed.
        max_ha_connections: maximum number of connected slaves; each may take a megabyte of buffers.
        ha_tls_enable: use TLS between master and slaves, by ``tls.config.file``. Java's brokers cannot.
    """

    ha_listen_port: int = setting(0, high=65_535)
    ha_master_address: str = setting("")
    ha_transfer_batch_size: int = setting(32 << 10, low=1, high=1 << 22)  # Java's slave has a buffer of 4 MiB
    ha_send_heartbeat_interval_ms: int = setting(5000, java="haSendHeartbeatInterval", low=1)
    ha_housekeeping_interval_ms: int = setting(20_000, java="haHousekeepingInterval", low=1)
    ha_max_gap_not_in_sync: int = setting(256 << 20)
    in_sync_replicas: int = setting(1, low=1)
    slave_timeout_ms: int = setting(3000, java="slaveTimeout", low=1)
    slave_read_enable: bool = setting(False, mutable=True)
    slave_sync_interval_ms: int = setting(60_000, low=10)
    max_ha_connections: int = setting(64, low=1)
    ha_tls_enable: bool = setting(False)

    def ha_server_tls(self) -> ServerTls | None:
        """Load the TLS of a master for its slaves; None for plain connections. Raises OptionError."""
        return ServerTls(TlsMode.ENFORCING, self._ha_tls_file()) if self.ha_tls_enable else None

    def ha_client_tls(self) -> Tls | None:
        """Return the TLS of a slave's connection to its master; None for a plain connection. Raises OptionError."""
        return self._ha_tls_file().client if self.ha_tls_enable else None

    def _ha_tls_file(self) -> TlsFile:
        if not self.tls_config_file:
            raise OptionError("haTlsEnable=true needs tls.config.file: set it to a file that names the certificates")
        return read_tls_file(self.tls_config_file)
