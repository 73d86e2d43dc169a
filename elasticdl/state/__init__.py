"""Keeps the facts that the master must not forget in a journal that outlives its process."""
