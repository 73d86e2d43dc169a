"""The worker: leases tasks, computes, and hands gradients on."""
