"""Recovery: rebuilds a run in a worker after a crash, from its recovery archives and its journal.

- ``recovery``: loads the newest good archive and replays the journal after it.
- ``archives``: writes recovery archives, and unloads runs into them.
- ``journal_losses``: notices a journal that lost acknowledged operations.
- ``run_placer``, ``run_moves``: the replica of a run, and its way to another one.
- ``membership``: replicas that join, and that leave once their runs have moved.
- ``catalog_rebuild``: writes the rows of runs that only their journals know.
"""
