"""Reports: one page, or one picture, about results that are on disk.

What a section draws is cut to size in `core/fit/plot_data.py`.
"""
