"""Fakes, servers and files that several tests use."""
