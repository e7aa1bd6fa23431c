"""What storage holds of each attempt: places, claims, write leases, generations and Flyte's own files."""
