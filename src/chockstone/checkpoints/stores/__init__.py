"""Where archives live: a directory, S3 and other object stores. Knows names and bytes, not what they mean."""
