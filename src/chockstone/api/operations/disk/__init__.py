"""Routes for disk space: its usage, retention policies and the trash. Must not know how the engine deletes."""
