"""Users, policies, and the guard before a broker's handlers."""
