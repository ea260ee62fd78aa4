"""A broker as a member of its cluster: registers with name servers, and as a slave copies its master's tables."""
