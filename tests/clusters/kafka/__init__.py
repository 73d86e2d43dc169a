"""A Kafka broker on this machine, for tests, benchmarks and examples."""
