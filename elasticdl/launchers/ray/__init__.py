"""A Ray cluster: a named detached actor keeps the master, and each other process has its own."""
