"""Who may connect: signatures of requests, and TLS."""
