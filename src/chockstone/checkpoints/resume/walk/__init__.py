"""From candidates to the one that is restored: scan, verdict, attempt, report."""
