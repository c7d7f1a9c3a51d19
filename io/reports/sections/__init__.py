"""The sections of a report, one file each: which numbers, how they are drawn, and what they say in words."""
