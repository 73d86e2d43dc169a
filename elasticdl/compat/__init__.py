"""Support for model files of ElasticDL 0.x: old names that work, and old calls that are refused."""
