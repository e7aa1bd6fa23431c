"""Choose what to resume from: scan the candidates, judge them, try to restore each, report the result.

``Chain`` is the entry. This room must not load tensors (the caller's ``load`` does), nor know schedulers or Flyte.
"""
