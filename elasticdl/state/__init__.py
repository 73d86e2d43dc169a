"""What the master must not forget: a journal of facts that outlives its process."""
