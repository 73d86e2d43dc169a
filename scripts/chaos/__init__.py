"""Breaks real jobs on purpose, and proves that what they trained is exact.

`job` starts the job. `expected` computes its result without faults. `faults` lists the faults and
their times. `strike` carries a fault out and checks that it happened. `judge` compares the result
of the job with the expected one. It is pure, and its tests make it say no. `run` runs one job from
start to verdict, `soak` runs many jobs. `python -m scripts.chaos --help` shows the options.
"""
