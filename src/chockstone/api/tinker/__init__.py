"""Routes that the Tinker SDK calls, one file per resource."""
