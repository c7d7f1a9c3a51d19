"""User Behavior Insights: queries and events of OpenSearch turned into a click log.

What the log then says is for `io.log`.
"""
