"""Everything that touches a disk, an engine or a file format."""  # noqa: A005 - installed as posbias.io
