"""Administration of users and their policies at a single broker by its address (codes 3001 to 3010).

Source: ``MQClientAPIImpl#createUser`` … ``#listAcl``.
"""

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.bodies.configs import AclInfo, UserInfo
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.requests import AccessFields


class UserRequests:
    """Requests about users; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, address: str, user: UserInfo) -> None:
        """Create a user."""
        await self._request(address, RequestCode.AUTH_CREATE_USER, _username_field(user), encode_body(user))

    async def update(self, address: str, user: UserInfo) -> None:
        """Change those members of a user that are set."""
        await self._request(address, RequestCode.AUTH_UPDATE_USER, _username_field(user), encode_body(user))

    async def delete(self, address: str, name: str) -> None:
        """Delete a user with its policies; nothing happens if there is none."""
        await self._request(address, RequestCode.AUTH_DELETE_USER, AccessFields(username=name))

    async def get(self, address: str, name: str) -> UserInfo | None:
        """Fetch a user; None if there is none."""
        body = await self._request(address, RequestCode.AUTH_GET_USER, AccessFields(username=name))
        return decode_body(body, UserInfo) if body else None

    async def find(self, address: str, part: str = "") -> list[UserInfo]:
        """Fetch the users whose names have a part, in order."""
        body = await self._request(address, RequestCode.AUTH_LIST_USER, AccessFields(filter=part))
        return decode_body(body, list[UserInfo]) if body else []

    async def put_acl(self, address: str, acl: AclInfo, *, is_new: bool) -> None:
        """Add entries to a user's policies, or replace entries of the same resource."""
        code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
        await self._request(address, code, AccessFields(subject=str(acl.subject)), encode_body(acl))

    async def delete_acl(self, address: str, subject: str, resource: str = "", policy_type: str = "") -> None:
        """Delete a user's entry for a resource, or all policies if none is named."""
        fields = AccessFields(subject=subject, resource=resource or None, policy_type=policy_type or None)
        await self._request(address, RequestCode.AUTH_DELETE_ACL, fields)

    async def get_acl(self, address: str, subject: str) -> AclInfo | None:
        """Fetch a user's policies; None if there are none."""
        body = await self._request(address, RequestCode.AUTH_GET_ACL, AccessFields(subject=subject))
        return decode_body(body, AclInfo) if body else None

    async def find_acls(self, address: str, subject: str = "", resource: str = "") -> list[AclInfo]:
        """Fetch the policies of users whose subjects and resources have these parts, in order."""
        fields = AccessFields(subject_filter=subject, resource_filter=resource)
        body = await self._request(address, RequestCode.AUTH_LIST_ACL, fields)
        return decode_body(body, list[AclInfo]) if body else []

    async def _request(self, address: str, code: RequestCode, fields: AccessFields, body: bytes = b"") -> bytes:
        return bytes((await self._cluster.request(address, code, fields, body)).body)


def _username_field(user: UserInfo) -> AccessFields:
    return AccessFields(username=str(user.username))
