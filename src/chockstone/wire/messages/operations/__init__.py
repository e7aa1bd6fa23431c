"""Messages of the routes for operators: the server, all runs, samplers, keys and the doctor's findings.

No SDK has them; the console, ``chockstone watch`` and operators' own programs do.
"""
