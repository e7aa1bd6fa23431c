"""Built-in losses, custom losses that clients upload, and the limits on the cost of a custom loss."""
