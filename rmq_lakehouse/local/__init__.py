"""Exports on one machine, without a JVM: Delta by delta-rs, Iceberg by pyiceberg."""
