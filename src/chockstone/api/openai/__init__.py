"""The API of OpenAI: models, completions, chat completions and responses, as its clients ask for them.

Must not know how tokens are sampled, or how text and calls of tools are found in them: that is ``api/chat``.
"""
