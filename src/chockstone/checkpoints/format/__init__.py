"""The bytes of one archive: tar, safetensors headers, layout, manifest and state tree.

Opens no file and knows no store: it turns states and manifests into bytes and offsets, and back.
"""

from chockstone.checkpoints.format.layout import Layout, Member
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.format.shards import Pieces

__all__ = ["Layout", "Manifest", "Member", "Pieces"]
