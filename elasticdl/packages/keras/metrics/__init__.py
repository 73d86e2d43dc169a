"""`resolve` finds metrics, `kinds` has metrics of one output, `collection` has all of a model."""
