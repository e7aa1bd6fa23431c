"""Completions of plain prompts: requests and answers.

Must not know the other routes of OpenAI.
"""
