"""Problems, samples and rewards: what the trainer trains on."""
