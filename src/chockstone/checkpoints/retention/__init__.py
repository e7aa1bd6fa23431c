"""Which checkpoints are kept and which are removed: the policy as data, and its enforcement.

Does not know how archives are written, nor how chains of attempts work: their facts arrive as ``ChainFacts``. Only
``enforcement`` imports readers of archives: a server needs the policy for its settings, before it starts its worker.
"""

from chockstone.checkpoints.retention.policy import Best, Removal, Retention, RetentionPlan, plan_retention

__all__ = ["Best", "Removal", "Retention", "RetentionPlan", "plan_retention"]
