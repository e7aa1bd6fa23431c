"""The lifecycle benchmark: saving, listing, downloading and deleting checkpoints, beside their baselines.

It uses the server as clients do, by HTTP and through the SDK, and looks inside only to fill it with many
checkpoints quickly, and to see how much memory it takes.
"""
