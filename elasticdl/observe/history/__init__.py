"""What has happened to a job over time, made from its event log by pure functions."""
