"""Workers on Ray: the work of a local worker, done by a group of processes that may be on several machines.

Ray places the processes, starts them, and reports when a process or its machine is gone. The work itself does not go
through Ray: rank 0 has a connection to the server, with the same calls and events as a local worker.

Only the driver process and the ranks import Ray. The server does not.
"""
