"""Responses: requests, input items, and answers as items and events.

Must not know the other routes of OpenAI but the tools of chat completions.
"""
