"""What `chockstone serve` does: checks the settings, hands them to the server, and prints how to reach it."""
