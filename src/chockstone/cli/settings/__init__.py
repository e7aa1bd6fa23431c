"""The settings of a server: one model, from which flags, variables, TOML keys, tables and the reference are made.

``settings`` is the only place where a setting is named, typed, defaulted, bounded and described. ``values`` has the
kinds of values, ``fields`` reads the model, ``sources`` loads it, ``flags`` makes options of it, ``table`` prints it.
This room knows neither servers nor catalogs: ``serving.checks`` decides whether a server can start.

The model is a plain dataclass. pydantic-settings would add 0.1 s to the start of `serve`, `keys` and `doctor`, does not
tell which source a value came from, takes unknown variables, and cannot resolve a path against the file that names it.
"""
