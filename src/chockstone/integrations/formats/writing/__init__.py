"""Writes archives as files that other programs read. Each appears complete and durable, or not at all."""
