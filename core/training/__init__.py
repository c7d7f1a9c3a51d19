"""Training rows: the weight of a click, the split of queries, and the layouts that trainers know.

Files and their formats are in `io.training`.
"""
