"""From counted logs to what learners learn from, and from what they learnt to files that score new documents.

How a learner learns is in `core.learners`.
"""
