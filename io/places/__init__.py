"""Paths, URLs, object stores, local copies of objects, and temporary files, whatever their content."""
