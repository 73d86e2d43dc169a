"""Minibatches of records, made by a user's `feed`."""
