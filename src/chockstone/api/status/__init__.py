"""What operators see: states of runs, free disk space, readiness, and problems that need a person.

Reads the engine and the catalog and changes neither. Must not know HTTP: ``operations`` answers with it.
"""
