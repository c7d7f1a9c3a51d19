"""What a row and a page of a click log must be, and what they become: impressions in one form.

Which files they come from is no matter here; how they are counted is in `counts`.
"""
