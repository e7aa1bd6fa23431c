"""Recovery: rebuilds a run in a worker after a crash, from its recovery archives and its journal.

- ``recovery``: loads the newest good archive and replays the journal after it.
- ``archives``: writes recovery archives, and unloads runs into them.
- ``journal_losses``: notices a journal that lost acknowledged operations.
- ``catalog_rebuild``: writes the rows of runs that only their journals know.
"""
