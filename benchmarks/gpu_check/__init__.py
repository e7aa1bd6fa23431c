"""The GPU check: does training and sampling work on this machine's device, and in how much memory?

``make gpu-check`` runs it and prints a report in Markdown. Without CUDA it runs with tiny models on the CPU.
"""
