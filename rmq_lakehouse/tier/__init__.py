"""Exports of a store with its tier, by queue offsets: a message keeps that when it moves from the one to the other."""
