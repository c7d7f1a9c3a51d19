"""Reports about stored results: an HTML page, or a chart as a picture.

The data of charts are prepared in `core/fit/plot_data.py`.
"""
