"""Engines: how a log of any size is read, checked and counted, here or on a Spark cluster.

Every engine gives the same rows and the same statistics; what is done with them is not known here.
"""
