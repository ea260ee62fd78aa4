"""Check of a transaction at its producer (request code 39, CHECK_TRANSACTION_STATE).

Source: ``AbstractTransactionalMessageCheckListener#sendCheckMessage``, ``ProducerManager#getAvailableChannel``.
"""

import logging
import random

from rmq_core.broker.access.push_rights import publish_permission
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Peer
from rmq_core.broker.transaction.half import PRODUCER_GROUP, real_queue
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.requests import CheckTransaction
from rmq_core.store.results import PutResult
from rmq_formats.codecs.layout import MAX_PROPERTIES_BYTES, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, StoredMessage, encode_record

log = logging.getLogger("rmq.broker.transactions")


def send_check(state: BrokerState, half: StoredMessage, properties: dict[str, str], put_result: PutResult) -> None:
    """Send the check of a half message to one permitted, connected member of its producer group, if there is one.

    Args:
        state: of the broker.
        half: as read.
        properties: of the new copy; the old ones are sent if these are too long.
        put_result: of the new copy.
    """
    queue, group = real_queue(properties), properties.get(PRODUCER_GROUP, "")
    if queue is None:
        return
    topic, queue_id = queue
    connection = _pick_member(state, group, topic)
    if connection is None:
        log.info("no member of %(group)s can be asked about a half message", {"group": group})
        return
    encoded = encode_properties(properties)
    if len(encoded) > MAX_PROPERTIES_BYTES:
        encoded = half.properties_bytes
    message = MessageToStore(
        topic=topic, queue_id=queue_id, body=half.body, properties_bytes=encoded,
        flag=half.flag, sys_flag=half.sys_flag, born_timestamp_ms=half.born_timestamp_ms, born_host=half.born_host,
        store_host=half.store_host, reconsume_times=half.reconsume_times,
    )  # fmt: skip
    fields = CheckTransaction(
        topic=half.topic, tran_state_table_offset=put_result.queue_offset, commit_log_offset=put_result.physical_offset,
        msg_id=properties.get(PROPERTY_UNIQ_KEY), transaction_id=properties.get(PROPERTY_UNIQ_KEY),
        offset_msg_id=put_result.msg_id,
    )  # fmt: skip
    body = encode_record(
        message, queue_offset=put_result.queue_offset, physical_offset=put_result.physical_offset,
        store_timestamp_ms=half.store_timestamp_ms, max_body_bytes=len(half.body),
    )  # fmt: skip
    command = request(RequestCode.CHECK_TRANSACTION_STATE, write_fields(fields), body)
    command.ext_fields["bname"] = state.config.broker_name
    connection.send_oneway(command)


def _pick_member(state: BrokerState, group: str, topic: str) -> Peer | None:
    """Return a permitted, connected member of a producer group that is not slow to read."""
    permissions = (publish_permission(topic),)
    members = [client for client in state.producers.groups.get(group, {}).values() if client.connection.is_ready]
    random.shuffle(members)
    allowed = (
        client
        for client in members
        if state.rights.may_receive(client.login, client.connection.remote_address, permissions)
    )
    client = next(allowed, None)
    return None if client is None else client.connection
