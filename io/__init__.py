"""Everything that touches a disk, an engine or a file format."""
