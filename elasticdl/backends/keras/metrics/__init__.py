"""Metrics: `collection` has those of a model, `resolve` finds them, `kinds` are of one output."""
