"""States of a connection's requests, and the events between them.

There are two state machines:

1. **Requests:** the table below. A ``Connection`` has one state, and looks up each change in ``TRANSITIONS``. If a
   state has no entry for an event, the event cannot happen in that state, and the lookup fails.
2. **Batch:** open or not. A batch opens in HANDLING and ends with ``after_batch`` and one write of all responses. It
   stays open in YIELDED until ``BATCH_S`` is over. A batch that is open when the connection is suspended ends in the
   next turn of the loop, because the awaited responses may need the end of the batch.

What holds in each state:

========= ======= ===================== ===============================================================
state     reads   next turn scheduled   requests
========= ======= ===================== ===============================================================
READING   yes     no                    all received ones are handled
HANDLING  yes     no                    are being handled, in this turn of the loop
YIELDED   no      yes                   some remain: the time slice is used up, others run first
SUSPENDED no      no                    wait for the peer to read responses, or for awaited ones
RELEASED  no      yes                   wait for the next turn: the reason of the suspension has ended
CLOSED    no      no                    none; the connection has ended
========= ======= ===================== ===============================================================

Bytes that arrive in another state than READING are kept. A transport over TLS may pause and resume the writing within
one write: that leads from HANDLING over SUSPENDED and RELEASED to READING before the last request is handled.
"""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """State of a connection's requests."""

    READING = "reading"
    HANDLING = "handling"
    YIELDED = "yielded"
    SUSPENDED = "suspended"
    RELEASED = "released"
    CLOSED = "closed"


class Event(StrEnum):
    """Change of a connection's requests."""

    HANDLE = "requests are handled from now on"
    YIELD = "the time slice is used up"
    FINISH = "the handling of this turn ends"
    SUSPEND = "the peer does not read, or too many responses are awaited"
    RELEASE = "the reason of the suspension has ended"
    READ = "no request remains"
    CLOSE = "the connection has ended"


# Bound once: the attribute of an enum costs more than the lookup in the table.
READING, HANDLING, YIELDED, SUSPENDED, RELEASED, CLOSED = State
HANDLE, YIELD, FINISH, SUSPEND, RELEASE, READ, CLOSE = Event
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    READING: {HANDLE: HANDLING, YIELD: YIELDED, FINISH: READING, SUSPEND: SUSPENDED, READ: READING, CLOSE: CLOSED},
    HANDLING: {HANDLE: HANDLING, YIELD: YIELDED, FINISH: READING, SUSPEND: SUSPENDED, READ: READING, CLOSE: CLOSED},
    YIELDED: {HANDLE: HANDLING, FINISH: YIELDED, SUSPEND: SUSPENDED, CLOSE: CLOSED},
    SUSPENDED: {FINISH: SUSPENDED, SUSPEND: SUSPENDED, RELEASE: RELEASED, CLOSE: CLOSED},
    RELEASED: {HANDLE: HANDLING, YIELD: YIELDED, FINISH: RELEASED, SUSPEND: SUSPENDED, READ: READING, CLOSE: CLOSED},
    CLOSED: {YIELD: CLOSED, FINISH: CLOSED, SUSPEND: CLOSED, CLOSE: CLOSED},
}
