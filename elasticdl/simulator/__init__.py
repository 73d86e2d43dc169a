"""What a job would do on a cluster that a user describes, from costs measured on their machine.

Pure: no thread, no clock, no file. `costs` and `cluster` are what goes in, `pace` simulates each
minibatch, `losses` simulates hours with processes that are lost, `forecast` puts both together.
"""
