"""Archives over HTTP: signed URLs, byte ranges, and files sent straight from disk."""
