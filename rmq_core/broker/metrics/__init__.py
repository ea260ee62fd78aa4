"""Metrics of a broker in Prometheus' text format, and the HTTP server for them."""
