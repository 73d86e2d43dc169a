"""Launchers run the processes of a job."""
