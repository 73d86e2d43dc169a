"""The launcher of Kubernetes: a Job for the master, and bare pods that the master asks for.

There is no operator and no resource of our own. The Job is the owner of all else, so one
`kubectl delete job NAME` leaves nothing behind, and no pod goes away with a pod of the master.
"""
