"""Questions about a store, and answers of three lines: what is seen, why it matters, and the next command."""

from dataclasses import dataclass
from enum import StrEnum


class Question(StrEnum):
    """Questions of operators."""

    START = "why does the broker not start?"
    MESSAGES = "why does a group not get messages?"
    LAG = "why is the lag negative?"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: what is seen, why it matters, and the next command."""

    question: Question
    seen: str
    reason: str
    command: str
    is_fault: bool = True
