"""Forward, backward and optimizer steps of LoRA and full runs on one base model."""
