"""What each process of a job needs before it has a role: start, log, files, locks, secrets."""
