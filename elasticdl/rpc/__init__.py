"""Messages between processes: generated code, channels, and clients of the master."""
