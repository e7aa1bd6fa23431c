"""The playground's work: samples through the engine's sampling path."""
