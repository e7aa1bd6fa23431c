"""Routes for operators: metrics, audit, policies, storage and trash."""
