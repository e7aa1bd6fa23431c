"""Resume: a chain of attempts, each of which resumes from the newest good checkpoint of any earlier attempt.

``attempts`` reads and writes single attempts, ``walk`` chooses among them, ``resume`` is what users call. This room
must not know Flyte's SDKs or the server; ``chockstone.integrations`` tells it where the attempts of a platform are.
"""

from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.resume.explain import explain, recorded
from chockstone.checkpoints.resume.resume import Resume
from chockstone.checkpoints.resume.walk.report import ResumeReport

__all__ = ["ResumeReport", "Resume", "Verdict", "explain", "recorded"]
