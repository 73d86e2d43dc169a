"""The common base of all processes of a job: start, log, files, locks and secrets."""
