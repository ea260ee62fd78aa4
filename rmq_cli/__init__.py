"""The command line ``rmq``: one module for each command, and what commands share."""
