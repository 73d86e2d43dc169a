"""Groups of settings that `elasticdl.config` puts together, and how their words are read."""
