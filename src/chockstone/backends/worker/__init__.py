"""What runs inside a worker process: the service, its turns, its checkpoints and its weights cache."""
