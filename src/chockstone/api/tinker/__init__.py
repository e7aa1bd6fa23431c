"""Routes of the Tinker API, one file per resource.

Each route decodes a request, finds what it names through ``Context`` or ``Lookup``, and submits it to the engine.
Must not know how operations run or where archives are stored.
"""
