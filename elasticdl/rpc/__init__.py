"""Messages between processes: generated code, channels, and clients of the master."""

import os

# Else gRPC prints to the terminal of a command that a master which ends has said so.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
