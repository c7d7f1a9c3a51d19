"""Arrays and what is computed on them: count tables, their compression, linear algebra, threads.

Nothing here knows of clicks, positions or models beyond counts per unit and cell.
"""
