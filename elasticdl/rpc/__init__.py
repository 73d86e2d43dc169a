"""Messages between processes: generated code, channels, and the master as its clients see it."""
