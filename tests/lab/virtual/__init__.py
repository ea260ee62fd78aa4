"""Machines in one process: an event loop whose time does not pass by itself, a network in memory, workers in turns."""
