"""Arguments and help of the commands for what a server serves with: aliases and worker replicas."""
