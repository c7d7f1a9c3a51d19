"""How `load.py` ends: it saves the model beside the result, never in it, where the manifest would not list it.

A file that is there stays, unless the command line names it.
"""

_SAVE = """target = Path(sys.argv[1]) if sys.argv[1:] else HERE.parent.with_name(f"{HERE.parent.name}-model.@SUFFIX@")
if target.exists() and not sys.argv[1:]:
    print(f"{os.path.relpath(target)} is there already and stays: to save this model, name a file for it")
else:
    @CALL@
    print(f"the model is saved as {os.path.relpath(target)}")
"""


def with_saving(script: str, call: str, suffix: str) -> str:
    """A script with its last lines.

    Args:
        script: what makes `model`; it imports `os`, `sys` and `Path`, and knows `HERE`.
        call: saves the model as `target`.
        suffix: of the file.
    """
    return script + _SAVE.replace("@CALL@", call).replace("@SUFFIX@", suffix)
