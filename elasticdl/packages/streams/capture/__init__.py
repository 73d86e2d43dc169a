"""Stores records of a source that cannot be cut into ranges: it is read once, in order, into files.

A source is a command that prints records, or a user's reader that knows its position. One process
reads it. Workers read the files like any other data.
"""
