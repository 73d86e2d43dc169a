"""The dense parameters in a checkpoint of a hybrid job: a folder of their own within it.

They come from one worker, the rows around them from the ps replicas; each part is restored by
itself. The folder has the form of a hand-over, which is a whole store's.
"""

from __future__ import annotations

DENSE = "dense"
