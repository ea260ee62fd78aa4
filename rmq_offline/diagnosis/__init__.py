"""Answers to an operator's questions about a store: from its cheap parts, its broker's settings and its logs."""
