"""Workers on Ray: the same work as in a child process, by a group of processes that may be on many machines.

Ray places the processes, starts them, and notices when one of them or its machine is gone. What they
work on never goes through it: rank 0 has a connection to the server, over which it hears and answers
what a local worker would.

Only the driver, a process of its own, and the ranks import Ray; the server does not.
"""
