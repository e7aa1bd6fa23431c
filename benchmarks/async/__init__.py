"""The async benchmark: what saving costs a program that must not stop, and what overlapping gains.

``async`` is a keyword, so files in here import each other relatively, and ``run.py`` sets its package by name.
"""
