"""Drive a RocketMQ 5 gRPC endpoint with Apache's own Python client (PyPI: rocketmq-python-client).

    py5.py FLOW --endpoints HOST:PORT [--topic T] [--group G] [--count N] [--ak AK --sk SK] [--tls]

FLOW is one of
  simple   send N normal messages (keys, tag, property), receive them with SimpleConsumer, ack all, then see that nothing is left
  push     send N normal messages, consume them with PushConsumer
  fifo     send N messages in two message groups, PushConsumer must see each group in order (the group must be orderly)
  delay    send N messages due in 3 s, none may arrive early or more than 5 s late
  tran     one commit, one rollback, one left to the server's check (committed by the checker): exactly two arrive
  lite     send N messages to each of two children of --topic, LitePushConsumer of --group must see each child, and nothing of a third
  lite_simple   the same with LiteSimpleConsumer, which fails the first message once
The last line printed is a JSON object; the exit status is 0 only if "ok" is true.
Topics must exist with the matching message.type (NORMAL, FIFO, DELAY, TRANSACTION, LITE).
"""

import argparse
import collections
import hashlib
import json
import os
import threading
import time

os.environ.setdefault("HOME", "/tmp")
import grpc
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

TOPIC = dict(
    simple="NormalT", push="NormalT", fifo="FifoT", delay="DelayT", tran="TranT", lite="Parent", lite_simple="Parent"
)
GROUP = dict(
    simple="norm_g",
    push="push_g",
    fifo="fifo_g",
    delay="delay_g",
    tran="tran_g",
    lite="lite_py",
    lite_simple="lite_py_simple",
)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("flow", choices=sorted(TOPIC))
    p.add_argument("--endpoints", required=True)
    p.add_argument("--topic")
    p.add_argument("--group")
    p.add_argument("--count", type=int, default=10)
    p.add_argument("--ak", default="")
    p.add_argument("--sk", default="")
    p.add_argument("--tls", action="store_true")
    p.add_argument("--wait", type=float, default=60)
    # Java's broker leaves a parked pop of lite topics without an answer now and then.
    p.add_argument("--asks-again", action="store_true")
    a = p.parse_args()
    a.topic = a.topic or TOPIC[a.flow]
    a.group = a.group or GROUP[a.flow]
    a.conf = ClientConfiguration(a.endpoints, Credentials(a.ak, a.sk))
    a.run = hashlib.md5(f"{time.time()}{os.getpid()}".encode()).hexdigest()[:8]
    return a


def message(a, i, tag="a", group=None, due=None, child=None):
    m = Message()
    m.topic = a.topic
    m.body = f"{a.run}-{i}".encode()
    m.keys = f"{a.run}-k{i}"
    m.tag = tag
    m.add_property("n", str(i))
    m.add_property("run", a.run)
    if group:
        m.message_group = group
    if child:
        m.lite_topic = child
    if due:
        m.delivery_timestamp = int(due)
    return m


def producer(a, **kw):
    p = Producer(a.conf, (a.topic,), tls_enable=a.tls, **kw)
    p.startup()
    return p


class Seen(MessageListener):
    def __init__(self, a):
        self.run, self.got, self.lock = a.run, [], threading.Lock()

    def consume(self, m):
        with self.lock:
            if m.properties.get("run") == self.run:
                self.got.append((m.body.decode(), time.time(), m.message_group, m.delivery_attempt, m.message_id))
        return ConsumeResult.SUCCESS


def push(a, n, settle=2.0):
    seen = Seen(a)
    c = PushConsumer(a.conf, a.group, seen, {a.topic: FilterExpression()}, tls_enable=a.tls)
    c.startup()
    end = time.time() + a.wait
    while len(seen.got) < n and time.time() < end:
        time.sleep(0.1)
    time.sleep(settle)
    c.shutdown()
    return seen.got


def simple(a):
    c = SimpleConsumer(a.conf, a.group, {a.topic: FilterExpression()}, 3, tls_enable=a.tls)
    c.startup()
    time.sleep(
        1
    )  # this client does not wait for the answer to its settings; the Java proxy answers 50001 before it has them
    p = producer(a)
    ids = {p.send(message(a, i)).message_id for i in range(a.count)}
    got, bad, end = {}, [], time.time() + a.wait
    while len(got) < a.count and time.time() < end:
        for m in c.receive(32, 15) or []:
            if m.properties.get("run") != a.run:
                c.ack(m)
                continue
            i = int(m.properties["n"])
            if (
                m.body.decode() != f"{a.run}-{i}"
                or m.tag != "a"
                or list(m.keys) != [f"{a.run}-k{i}"]
                or m.delivery_attempt != 1
            ):
                bad.append([i, m.body.decode(), m.tag, list(m.keys), m.delivery_attempt])
            c.ack(m)
            got[m.message_id] = i
    left = [m for _ in range(2) for m in c.receive(32, 15) or [] if m.properties.get("run") == a.run]
    p.shutdown()
    c.shutdown()
    return dict(ok=set(got) == ids and not bad and not left, sent=len(ids), got=len(got), bad=bad, left=len(left))


def push_flow(a):
    p = producer(a)
    ids = {p.send(message(a, i)).message_id for i in range(a.count)}
    got = push(a, a.count)
    p.shutdown()
    return dict(
        ok={g[4] for g in got} == ids and len(got) == a.count,
        sent=len(ids),
        got=len(got),
        attempts=sorted({g[3] for g in got}),
    )


def fifo(a):
    p = producer(a)
    for i in range(a.count):
        p.send(message(a, i, group=f"{a.run}-g{i % 2}"))
    got = push(a, a.count)
    p.shutdown()
    by = collections.defaultdict(list)
    for g in got:
        by[g[2]].append(int(g[0].split("-")[1]))
    return dict(ok=len(got) == a.count and all(v == sorted(v) for v in by.values()) and len(by) == 2, order=by)


def delay(a):
    p = producer(a)
    due = time.time() + 3
    for i in range(a.count):
        p.send(message(a, i, due=round(due)))
    got = push(a, a.count)
    p.shutdown()
    late = [round(g[1] - round(due), 2) for g in got]
    return dict(ok=len(got) == a.count and min(late) > -0.5 and max(late) < 5, got=len(got), late=late[:5])


class Check(TransactionChecker):
    def __init__(self):
        self.asked = []

    def check(self, m):
        self.asked.append(m.body.decode())
        return TransactionResolution.COMMIT


def tran(a):
    check = Check()
    p = producer(a, checker=check)
    for i, end in enumerate(("commit", "rollback", None)):
        t = p.begin_transaction()
        p.send(message(a, i), t)
        if end:
            getattr(t, end)()
    got = sorted(g[0] for g in push(a, 2, settle=4))
    p.shutdown()
    return dict(
        ok=got == [f"{a.run}-0", f"{a.run}-2"] and check.asked[:1] == [f"{a.run}-2"], got=got, asked=check.asked
    )


def subscribe(a, c, child):
    end = time.time() + a.wait
    while True:
        try:
            return c.subscribe_lite(child)
        except Exception:  # this client does not wait for the answer to its settings, and knows no quota before
            if time.time() > end:
                raise
            time.sleep(0.2)


def sent_to_children(a, c):
    for name in ("x", "y"):
        subscribe(a, c, f"{a.run}-{name}")
    c.subscribe_lite_all()  # 5.1.2 subscribes to each letter of a name, and tells the names themselves 30 s later
    p = producer(a)
    for i in range(a.count):
        for name in ("x", "y", "z"):
            p.send(message(a, i, child=f"{a.run}-{name}"))
    p.shutdown()
    return {f"{a.run}-{name}": [f"{a.run}-{i}" for i in range(a.count)] for name in ("x", "y")}


class SeenOfChildren(MessageListener):
    def __init__(self):
        self.got, self.lock = collections.defaultdict(list), threading.Lock()

    def consume(self, m):
        with self.lock:
            self.got[m.lite_topic].append(m.body.decode())
        return ConsumeResult.SUCCESS


def lite(a):
    seen = SeenOfChildren()
    c = LitePushConsumer(a.conf, a.group, a.topic, seen, tls_enable=a.tls)
    c.startup()
    wanted, end = sent_to_children(a, c), time.time() + a.wait
    while each_once(seen.got) != wanted and time.time() < end:
        time.sleep(0.1)
    time.sleep(1)
    return dict(ok=each_once(seen.got) == wanted, got=seen.got)


def each_once(got):
    # A slow client's messages come again before it has acknowledged them.
    return {name: sorted(set(one)) for name, one in list(got.items())}


def receive(a, c):
    try:
        return c.receive(32, 15)
    except grpc.RpcError as error:
        if not a.asks_again or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return None


def lite_simple(a):
    c = LiteSimpleConsumer(a.topic, a.conf, a.group, 5, tls_enable=a.tls)
    c.startup()
    wanted, end = sent_to_children(a, c), time.time() + a.wait
    got, failed = collections.defaultdict(list), 0
    while each_once(got) != wanted and time.time() < end:
        for m in receive(a, c) or []:
            if m.body.decode() == f"{a.run}-0" and m.delivery_attempt == 1:
                failed += 1
                c.change_invisible_duration(m, 1)
            else:
                c.ack(m)
                got[m.lite_topic].append(m.body.decode())
    return dict(ok=each_once(got) == wanted and failed == 2, got=got, failed=failed)


if __name__ == "__main__":
    a = arguments()
    try:
        r = dict(
            flow=a.flow,
            **dict(
                simple=simple, push=push_flow, fifo=fifo, delay=delay, tran=tran, lite=lite, lite_simple=lite_simple
            )[a.flow](a),
        )
    except Exception as e:
        r = dict(flow=a.flow, ok=False, error=f"{type(e).__name__}: {e}")
    print(json.dumps(r), flush=True)
    os._exit(0 if r["ok"] else 1)
