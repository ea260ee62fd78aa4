"""Asks a producer for the outcome of a transaction (request code 39, CHECK_TRANSACTION_STATE).

Source: ``AbstractTransactionalMessageCheckListener#sendCheckMessage``, ``ProducerManager#getAvailableChannel``.
"""

import logging
import random

from rmq_core.broker.access.push_rights import publish_permission
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Peer
from rmq_core.broker.transaction.half import PRODUCER_GROUP, real_place
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.requests import CheckTransaction
from rmq_core.store.results import PutResult
from rmq_formats.codecs.layout import MAX_PROPERTIES_BYTES, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, StoredMessage, encode_record

log = logging.getLogger("rmq.broker.transactions")


def ask_producer(state: BrokerState, half: StoredMessage, properties: dict[str, str], again: PutResult) -> None:
    """Ask one connected member of a half message's producer group who may publish to its real topic, if there is one.

    Args:
        state: of the broker.
        half: as it was read.
        properties: as it was stored again with; the old ones are sent if these are too long.
        again: the result of storing it again.
    """
    place, group = real_place(properties), properties.get(PRODUCER_GROUP, "")
    if place is None:
        return
    topic, queue_id = place
    connection = _member(state, group, topic)
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
        topic=half.topic, tran_state_table_offset=again.queue_offset, commit_log_offset=again.physical_offset,
        msg_id=properties.get(PROPERTY_UNIQ_KEY), transaction_id=properties.get(PROPERTY_UNIQ_KEY),
        offset_msg_id=again.msg_id,
    )  # fmt: skip
    body = encode_record(
        message, queue_offset=again.queue_offset, physical_offset=again.physical_offset,
        store_timestamp_ms=half.store_timestamp_ms, max_body_bytes=len(half.body),
    )  # fmt: skip
    command = request(RequestCode.CHECK_TRANSACTION_STATE, write_fields(fields), body)
    command.ext_fields["bname"] = state.config.broker_name
    connection.send_oneway(command)


def _member(state: BrokerState, group: str, topic: str) -> Peer | None:
    """A connected member of a producer group who may publish to a topic; one that is slow to read is skipped."""
    needs = (publish_permission(topic),)
    members = [client for client in state.producers.groups.get(group, {}).values() if client.connection.is_ready]
    random.shuffle(members)
    allowed = (one for one in members if state.rights.may_receive(one.login, one.connection.remote_address, needs))
    client = next(allowed, None)
    return None if client is None else client.connection
