"""Archives open for reading: members, tensors and digests, verified and in place."""
