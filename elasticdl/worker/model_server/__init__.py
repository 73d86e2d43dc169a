"""Model servers compute towers for workers, and keep nothing that could be lost."""
