"""Metrics: metrics of a model in `collection`, of one output in `kinds`; `resolve` finds them."""
