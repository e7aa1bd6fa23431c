"""The benchmark of many ranks: one archive saved and loaded by several processes, and steps of sharded workers."""
