"""Reports: one page, or one picture, about results that are on disk.

What a chart draws is cut to size in `core/fit/plot_data.py`.
"""
