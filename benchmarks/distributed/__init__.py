"""Many ranks, in figures: one archive written and read by several processes, and what keeping them in step costs."""
