"""The pages of a log as click models take them, in memory or on disk, with the numbers of what they show."""

__all__: list[str] = []
