"""Groups of settings that `elasticdl.config` combines, and the readers of their words."""
