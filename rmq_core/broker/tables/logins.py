"""Users as connected clients have signed for them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Login:
    """The user who has signed a request.

    Attributes:
        name: of the user.
        password: that the request was signed with.
    """

    name: str
    password: str = field(repr=False)
