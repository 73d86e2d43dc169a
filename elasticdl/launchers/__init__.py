"""Launchers: who runs the processes of a job."""
