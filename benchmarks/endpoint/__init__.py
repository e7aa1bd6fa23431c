"""What the endpoint of OpenAI costs beside the SDK of Tinker, and what many streams at once do to other requests.

Run it with ``python benchmarks/endpoint/run.py``; ``benchmarks/endpoint/README.md`` says what the figures mean.
"""
