"""Tables, JSON, durations, sizes and questions on the terminal."""
