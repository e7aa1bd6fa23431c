"""What it costs to see everything: step history, metrics and traces on training, and the console on a full server."""
