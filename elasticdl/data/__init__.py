"""Readers of data: where records are, and the records of any range."""
