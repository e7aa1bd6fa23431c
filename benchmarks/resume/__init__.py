"""The resume benchmark: what finding the newest good checkpoint costs, and what it adds to saving one.

Uses the library as trainers and adapters do. S3 is the server of the tests, on loopback, in a process of its own.
"""
