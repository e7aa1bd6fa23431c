"""Small random models in Hugging Face format, for trying things offline."""
