"""The command line: words become a `JobConfig`, and a job that is watched to its end."""
