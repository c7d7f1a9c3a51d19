"""How a result comes into being: made aside, with a manifest, moved into place whole or not at all.

Only here is anything of a user's replaced, and only a result of posbias.
"""
