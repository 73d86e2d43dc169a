"""Breaks real jobs on purpose, and proves that what they trained is exact.

`job` is the job that is broken, `expected` what it would train undisturbed. `faults` names what can
be done to it and when, `strike` does it and looks whether it happened. `judge` compares what came
of the job with what should have; it is pure, and its tests make it say no. `run` is one job from
start to verdict, `soak` many of them. `python -m scripts.chaos --help` says how to start it.
"""
