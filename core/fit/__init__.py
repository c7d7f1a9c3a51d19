"""One fit from sufficient statistics to its tests and its propensity table.

What is computed lives in the rooms below; here it is put in order.
"""
