"""The Spark data source ``rmq``: messages of a running cluster, read, streamed and sent."""
