"""Resume: a chain of attempts, each resuming from the newest good checkpoint of any earlier attempt.

Knows nothing of platforms; ``chockstone.integrations`` tells it where their attempts are.
"""

from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.explain import explain, recorded
from chockstone.checkpoints.resume.resume import Resume
from chockstone.checkpoints.resume.walk.report import ResumeReport

__all__ = ["ResumeReport", "Resume", "Verdict", "explain", "recorded"]
