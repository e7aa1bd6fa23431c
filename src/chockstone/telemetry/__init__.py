"""Telemetry: how the server measures itself, and how its log lines and traces say which request they belong to.

Every metric is declared here once. The room imports no other room of ours, and knows nothing of runs, tensors or users:
other rooms hand it numbers, and label values from short, fixed lists.
"""
