"""Which checkpoints are kept and which are removed: the policy as data, and its enforcement.

Does not know how archives are written, nor how chains of attempts work: their facts arrive as ``ChainFacts``.
"""

from chockstone.checkpoints.retention.enforcement import apply_retention
from chockstone.checkpoints.retention.policy import Best, Removal, Retention, RetentionPlan, plan_retention

__all__ = ["Best", "Removal", "Retention", "RetentionPlan", "apply_retention", "plan_retention"]
