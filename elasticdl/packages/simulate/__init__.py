"""Simulates a job on a cluster that the user describes, with costs measured on the user's machine.

The simulation is pure: it has no thread, no clock and no file. `costs` and `cluster` are its
inputs. `pace` simulates each minibatch. `losses` simulates hours in which processes are lost.
`forecast` puts both together. `command` is `elasticdl simulate`, and `calibrate` measures the
costs.
"""

from elasticdl.registry import Package

PACKAGE = Package(commands={"simulate": "elasticdl.packages.simulate.command:simulate"})
