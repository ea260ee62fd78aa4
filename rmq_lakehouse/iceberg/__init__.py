"""Iceberg tables: their metadata, their files and catalogs."""
