"""Readers of data: they list where records are, and read the records of any range."""
