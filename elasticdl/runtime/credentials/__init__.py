"""Certificates: who signs them, where their files are, and how they are renewed.

`docs/designs/tls.md` lists the files that each process holds.
"""
