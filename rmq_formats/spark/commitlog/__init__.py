"""The Spark data source ``rmq_commitlog``: read, streamed and written."""
