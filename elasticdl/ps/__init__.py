"""Ps replicas: where they start, and what they restore from."""
