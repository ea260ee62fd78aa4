"""The command line ``rmq``: a module for each command, and what they share."""
