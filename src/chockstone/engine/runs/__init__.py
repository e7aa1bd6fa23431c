"""Training runs: a client's command on its way to the worker, and its result on the way back.

- ``commands``, ``operations``, ``run``, ``run_journal``: what the others work on.
- ``core``: builds the parts. ``training``: takes requests.
- ``runner``: gives each operation its turn: durable, recovered, executed, settled.
- ``executor``, ``saving``: do what a command says.
- ``recovery/``: rebuilds a run in a worker.
- ``registry``, ``unloading``: create, wake, park and end runs.

Nothing here knows HTTP or tensors.
"""
