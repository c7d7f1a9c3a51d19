"""One fit from sufficient statistics to everything that is said about it, and its propensity table.

What is computed lives in the rooms below; here it is put in order.
"""
