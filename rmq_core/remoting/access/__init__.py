"""Signatures of requests, and TLS."""
