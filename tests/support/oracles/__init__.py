"""Oracles: rules in plain Python that kernels are compared with."""
