"""Tests of the consumer that pops."""
