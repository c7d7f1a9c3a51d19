"""t"""

from typing import Literal

Missing = Literal["error", "drop", "nan"]
