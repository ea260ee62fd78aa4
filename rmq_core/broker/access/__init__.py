"""Who may do what at a broker: users, policies, and the guard before its request handlers (ACL 2.0)."""
