"""The bytes of one archive: tar, safetensors headers, layout, manifest and state tree. Opens no file."""
