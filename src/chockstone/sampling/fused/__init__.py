"""Our own decoder for Llama-like models: all rows and adapters in one batch."""
