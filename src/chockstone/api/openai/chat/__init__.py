"""Chat completions: requests, messages and answers.

Must not know the other routes of OpenAI.
"""
