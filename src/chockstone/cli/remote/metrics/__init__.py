"""Metrics of a run, as its server recorded them: a table, CSV, JSON, or live (``runs metrics``).

- ``step_rows``: joins the points of each optimizer step to one row.
- ``event_stream``: reads server-sent events, and connects again when the server was away.
- ``run_metrics``: prints the rows.
"""
