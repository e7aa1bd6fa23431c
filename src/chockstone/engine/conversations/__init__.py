"""Conversations: requests of users and the answers of models, kept with token ids and log-probabilities to train on.

- ``answers``: what is kept of one request, the rewards and corrections that its user attaches, and its id.
- ``conversation_file``: the file of one conversation: its bytes, and what damage costs.
- ``owner_directory``: the files of one owner.
- ``conversations``: keeps, lists, rewards, corrects and deletes the conversations of all owners.
- ``datums``: conversations as data for a loss.

This room must not know samplers, runs, tokenizers, workers or HTTP.
"""

from chockstone.engine.conversations.answers import (
    Api,
    ConversationMissing,
    ConversationsFull,
    Correction,
    Feedback,
    KeptConversation,
    StoredAnswer,
    StoredChoice,
)
from chockstone.engine.conversations.conversations import ConversationPage, Conversations, ConversationUse

__all__ = [
    "Api",
    "KeptConversation",
    "ConversationMissing",
    "ConversationPage",
    "ConversationUse",
    "Conversations",
    "ConversationsFull",
    "Correction",
    "Feedback",
    "StoredAnswer",
    "StoredChoice",
]
