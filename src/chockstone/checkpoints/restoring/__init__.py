"""From an archive to live objects: restore, load, search past damage, receipt, export and diff.

Reads archives and never writes one. Does not know attempts or chains; ``resume`` uses its verdicts for those.
"""

from chockstone.checkpoints.restoring.random_state import RandomState
from chockstone.checkpoints.restoring.receipt import RestoreReceipt
from chockstone.checkpoints.restoring.restore import load_state, load_tensor, restore_state

__all__ = ["RandomState", "RestoreReceipt", "load_state", "load_tensor", "restore_state"]
