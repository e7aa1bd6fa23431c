"""Built-in and uploaded losses, and what an uploaded one may cost."""
