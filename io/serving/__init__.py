"""Search engines: what an export writes for each beside the model, and what an engine answers."""
