"""Names of what was written for ElasticDL 0.x; the package `earlier` has the code."""
