"""One base model on several processes: weights sharded with FSDP2, runs trained and sampled in step.

The worker's code is the same as for one process; this room holds what the processes send each other. It does not know
who starts them.
"""
