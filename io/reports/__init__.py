"""Reports: one page, or one picture, about results that are on disk.

Each section of the page is a file in `sections`; what it draws is cut to size in core/reporting.
"""
