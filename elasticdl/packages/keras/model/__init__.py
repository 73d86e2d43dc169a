"""A user's Keras model: built, its embedding lookups found, and called step by step."""
