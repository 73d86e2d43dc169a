"""A Kubernetes cluster on one machine, for tests and experiments: real control plane, own nodes."""
