"""From an archive to live objects: restore, walk back past damage, receipt, export."""
