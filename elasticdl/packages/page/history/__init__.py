"""Adds up the events of a job to its history, by pure functions."""
