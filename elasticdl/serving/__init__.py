"""One process that answers with the newest version of an export, and follows it."""
