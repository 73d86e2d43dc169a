"""Shows what a job does: events, metrics, the page, the report, trackers."""
