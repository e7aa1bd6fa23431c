"""The harness: what every benchmark shares. It knows neither Chockstone nor any one benchmark.

A benchmark is a ``run.py`` that declares its measures. A ``Measure`` has a function that measures, in rounds in which
its contestants take turns; columns for its table; a panel for the plot; and aims: figures with a bound.
"""
