"""What model files of ElasticDL 0.x are given, and which of their calls are refused."""
