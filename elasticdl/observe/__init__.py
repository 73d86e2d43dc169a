"""What a job tells about itself."""
