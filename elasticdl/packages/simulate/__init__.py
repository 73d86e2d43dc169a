"""What a job would do on a cluster that a user describes, from costs measured on their machine.

The simulation is pure: no thread, no clock, no file. `costs` and `cluster` are what goes in, `pace`
simulates each minibatch, `losses` simulates hours with processes that are lost, `forecast` puts
both together. `command` is `elasticdl simulate`, and `calibrate` measures the costs.
"""

from elasticdl.registry import Package

PACKAGE = Package(commands={"simulate": "elasticdl.packages.simulate.command:simulate"})
