"""Starts ps replicas, and restores what they begin with."""
