"""Access control of a broker (ACL 2.0): users, policies, and the guard of request handlers."""
