"""This machine as a cluster: a job is a folder, and its processes are subprocesses."""
