"""A checkpoint's life on storage: save, quota, policy, sweep, scrub, trash."""
