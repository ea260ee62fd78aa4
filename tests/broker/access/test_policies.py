"""Which entry of a user's policies decides, and which texts are none."""

import itertools

import pytest

from rmq_core.broker.access.policies import (
    Action,
    Entry,
    Permission,
    canonical_entry,
    decide,
    group_permission,
    parse_entry,
    topic_permission,
)
from rmq_core.remoting.bodies.configs import PolicyEntryInfo
from rmq_core.remoting.errors import ResponseError

PUB = topic_permission("TTX", Action.PUB)


def entry(resource: str, decided: str = "Allow", actions: str = "Pub", *ips: str) -> Entry:
    return parse_entry(
        PolicyEntryInfo(resource=resource, decision=decided, actions=actions.split(","), source_ips=list(ips))
    )


def decided(need: Permission, *entries: Entry, host: str = "127.0.0.1") -> bool | None:
    """The decision, which must not depend on the order of the entries."""
    decisions = {decide([order], need, host) for order in itertools.permutations(entries)}
    assert len(decisions) == 1
    return decisions.pop()


@pytest.mark.parametrize(("allowed", "denied", "expected"), [
    ("Topic:T*", "Topic:TT*", False), ("Topic:TT*", "Topic:T*", True),  # the longer prefix
    ("Topic:T*", "Topic:TTX", False), ("Topic:TTX", "Topic:T*", True),  # the name before a prefix
    ("Topic:*", "Topic:TTX", False), ("Topic:TTX", "Topic:*", True), ("Topic:T*", "Topic:*", True),
    ("*", "Topic:TTX", False), ("Topic:TTX", "*", True), ("Topic:*", "*", True), ("*", "Topic:*", False),
    ("Topic:TTX", "Topic:TTX", False), ("*", "*", False), ("Topic:T*", "Topic:T*", False),  # a Deny among equals
])  # fmt: skip
def test_the_entry_that_says_most_decides_in_whatever_order_they_stand(
    allowed: str, denied: str, expected: bool
) -> None:
    assert (
        decided(PUB, entry(allowed), entry(denied, "Deny"), entry("Topic:Other"), entry("Group:*", "Deny")) is expected
    )


def test_an_entry_fits_its_resource_its_actions_and_its_addresses() -> None:
    assert decided(PUB, entry("Topic:TTX", actions="Sub,Get")) is None
    assert decided(PUB, entry("Topic:TTX", actions="All")) is True
    assert decided(PUB, entry("Group:TTX")) is None
    assert decided(PUB, entry("Topic:TT")) is None
    assert decided(topic_permission("TTX", Action.SUB, Action.GET), entry("Topic:TTX", "Allow", "Get")) is True
    near = entry("Topic:TTX", "Allow", "Pub", "10.0.0.0/8", "::1")
    assert [decided(PUB, near, host=host) for host in ("10.1.2.3", "11.0.0.1", "::1", "::2")] == [
        True,
        None,
        True,
        None,
    ]


def test_default_policies_count_where_no_custom_one_fits() -> None:
    assert decide([[entry("Topic:TTX", "Deny")], [entry("*")]], PUB, "::1") is False
    assert decide([[entry("Topic:A", "Deny")], [entry("*")]], PUB, "::1") is True
    assert decide([[], []], PUB, "::1") is None


def test_topics_of_retries_and_dead_letters_are_their_group_s() -> None:
    assert (
        topic_permission("%RETRY%g", Action.SUB)
        == topic_permission("%DLQ%g", Action.SUB)
        == group_permission("g", Action.SUB)
    )


@pytest.mark.parametrize(("change", "words"), [
    ({"resource": None}, "resource is null"), ({"resource": "Topic"}, "resource is null"),
    ({"resource": "Topic:"}, "resource is null"), ({"resource": "Thing:a"}, "resource is null"),
    ({"resource": "Topic:a*b"}, "not its end"), ({"resource": "*:a"}, "resource is null"),
    ({"actions": []}, "actions is empty"), ({"actions": ["Any"]}, "can not be Any"), ({"actions": ["Fly"]}, "unknown"),
    ({"decision": None}, "decision is null"), ({"decision": "Perhaps"}, "decision is null"),
    ({"source_ips": [" "]}, "source ip is empty"), ({"source_ips": ["1.2.3"]}, "source ip is invalid"),
    ({"source_ips": ["1.2.3.4"] * 300}, "more than 256"),
])  # fmt: skip
def test_what_is_no_entry_is_refused(change: dict[str, object], words: str) -> None:
    fields = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"} | change
    with pytest.raises(ResponseError, match=words):
        parse_entry(PolicyEntryInfo(**fields))  # type: ignore[arg-type]


def test_words_are_taken_in_any_case_and_given_in_one() -> None:
    given = PolicyEntryInfo(resource="topic:AT*", actions=["PUB", "sub", "pub"], decision="allow", source_ips=["::1"])
    assert canonical_entry(given) == PolicyEntryInfo(
        resource="Topic:AT*", actions=["Pub", "Sub"], decision="Allow", source_ips=["::1"]
    )
    assert canonical_entry(PolicyEntryInfo(resource="*", actions=["all"], decision="DENY")).resource == "*"
