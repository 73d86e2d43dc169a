"""Certificates: who signs them, where their files are, and how they are renewed.

`docs/designs/tls.md` says which process holds what.
"""
