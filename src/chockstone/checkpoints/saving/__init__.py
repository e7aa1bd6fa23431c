"""From live state to a committed archive: snapshot, image, writer, and the background job.

Knows nothing of restoring, and of other ranks only their number.
"""

from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.handle import SavedCheckpoint, SaveHandle, SaveProgress
from chockstone.checkpoints.saving.request import SaveOptions

__all__ = ["Admission", "SaveHandle", "SaveOptions", "SaveProgress", "SavedCheckpoint"]
