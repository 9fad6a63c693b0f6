"""Will it help? A pair measured on this machine, and the speed of every policy predicted.

`diagnose` times passes, records traces, replays hundreds of settings on them, and says what to
use, or that speculation does not pay.
"""

from .advice import Advice
from .agreement import Agreement, Bin
from .diagnosis import Diagnosis, TaskShare, diagnose
from .head import Cut, Head
from .predict import Prediction
from .profile import Profile
from .prompts import BuiltInPrompt, builtin_prompts

__all__ = [
    "Advice",
    "Agreement",
    "Bin",
    "BuiltInPrompt",
    "Cut",
    "Diagnosis",
    "Head",
    "Prediction",
    "Profile",
    "TaskShare",
    "builtin_prompts",
    "diagnose",
]
