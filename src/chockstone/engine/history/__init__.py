"""Step history: the numbers of each run, one point per operation, and the points that clients report.

- ``points``: a point, its measurement, and the checks of names and numbers.
- ``thinning``: merges older points, so that a history stays small.
- ``history_file``: the file of one run: append-only records with a checksum.
- ``file_cache``: the files that were read last, parsed.
- ``run_history``: the history of one run in memory: positions, and what is not written yet.
- ``subscriptions``: new points for those who wait for them.
- ``step_history``: records, reads and publishes the points of all runs.

This room must not know runs, journals, workers or HTTP.
"""
