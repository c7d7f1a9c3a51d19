"""What a report draws: the tables of a fit, cut to what can be looked at. How it is drawn is in io/reports."""
