"""Arguments and help of the commands for what a server serves with: aliases, samplers and worker replicas."""
