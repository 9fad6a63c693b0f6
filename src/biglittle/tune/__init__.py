"""Tuning: the fastest policy for a pair and a task whose loss of quality stays inside a budget.

`tune` searches and confirms; the `Profile` that it leaves is what `biglittle.load(profile=...)` and
`--profile` take.
"""

from .budget import Budget, parse_budget
from .confirm import Timed
from .lab import Setting
from .profile import Profile, Rejected
from .quality import Change, similarity
from .tuning import tune

__all__ = [
    "Budget",
    "Change",
    "Profile",
    "Rejected",
    "Setting",
    "Timed",
    "parse_budget",
    "similarity",
    "tune",
]
