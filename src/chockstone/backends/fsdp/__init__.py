"""One base model, many processes: its weights sharded with FSDP2, the runs on it trained and sampled in step.

The worker's code is the same as for one process; here is what the processes say to each other. It knows nothing of
who starts them.
"""
