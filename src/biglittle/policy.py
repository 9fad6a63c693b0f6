"""Policies by name: a lookahead and an acceptance rule, written as a short string.

    cost-aware                         drafts while it pays, lossless (the default)
    dynamic                            confidence lookahead, lossless
    static:tokens=5                    constant lookahead, lossless
    heuristic                          grows and shrinks with success, lossless
    bild:fallback=0.6,rollback=3       Big Little Decoder, lossy
    none                               plain decoding by the target
    confidence:threshold=0.5+bild:rollback=2     any lookahead with any acceptance

The general form is `LOOKAHEAD[:option=value,...][+ACCEPTANCE[:option=value,...]]`. A lookahead's
name is its module's in `biglittle.lookahead`, so a new rule needs no entry here.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from . import lookahead as lookahead_package
from .acceptance import Acceptance, Bild, Exact
from .errors import PolicyError, nearest
from .lookahead import Confidence, Constant, CostAware, Fallback, Heuristic, Lookahead

__all__ = ["Policy", "PolicyLike", "build_rule", "parse_policy", "print_rule", "reads_files"]
__all__ += ["split_rule"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A named pair of a lookahead and an acceptance rule.

    Attributes:
        lookahead: When to stop drafting; None for plain decoding by the target.
        acceptance: Which drafted tokens stay.
    """

    lookahead: Lookahead | None
    acceptance: Acceptance = dataclasses.field(default_factory=Exact)

    def __post_init__(self) -> None:
        if self.lookahead is not None and not isinstance(self.lookahead, Lookahead):
            raise PolicyError(f"lookahead: {self.lookahead!r} is not a Lookahead")
        if not isinstance(self.acceptance, Acceptance):
            raise PolicyError(f"acceptance: {self.acceptance!r} is not an Acceptance")

    @property
    def lossless(self) -> bool:
        """Whether the output is what the target alone would write."""
        return self.lookahead is None or self.acceptance.lossless

    @classmethod
    def cost_aware(cls) -> Policy:
        """Drafting while it pays, by typical costs: the default, lossless."""
        return cls(CostAware())

    @classmethod
    def dynamic(cls, threshold: float = 0.4, tokens: int = 20) -> Policy:
        """Dynamic speculative decoding: confidence lookahead, lossless."""
        return cls(Confidence(threshold, tokens))

    @classmethod
    def static(cls, tokens: int = 5) -> Policy:
        """A constant number of drafted tokens, lossless."""
        return cls(Constant(tokens))

    @classmethod
    def heuristic(cls, start: int = 5) -> Policy:
        """Lookahead that grows and shrinks with success, lossless."""
        return cls(Heuristic(start))

    @classmethod
    def bild(cls, fallback: float = 0.6, rollback: float = 3.0, tokens: int = 10) -> Policy:
        """Big Little Decoder. **Lossy**: `rollback` buys speed with quality."""
        return cls(Fallback(fallback, tokens), Bild(rollback))

    @classmethod
    def none(cls) -> Policy:
        """Plain decoding by the target."""
        return cls(None)

    def __str__(self) -> str:
        """The string that `parse_policy` reads back."""
        if self.lookahead is None:
            return "none"
        if isinstance(self.lookahead, Fallback) and isinstance(self.acceptance, Bild):
            return _print_bild(self.lookahead, self.acceptance)
        text = print_rule(ALIASES.get(self.lookahead.name, self.lookahead.name), self.lookahead)
        if isinstance(self.acceptance, Exact):
            return text
        if isinstance(self.acceptance, Bild):
            return f"{text}+{_print_rollback(self.acceptance)}"
        return f"{text}+{print_rule(self.acceptance.name, self.acceptance)}"


PolicyLike = str | Policy

ACCEPTANCES: dict[str, type[Acceptance]] = {"exact": Exact, "bild": Bild}
ALIASES = {
    "confidence": "dynamic",
    "constant": "static",
    "cost_aware": "cost-aware",
    "self_adjusting": "self-adjusting",
}
NOTHING: Mapping[str, str] = {}
NAMED = {name: rule for rule, name in ALIASES.items()}


def parse_policy(policy: PolicyLike) -> Policy:
    """A `Policy` from its string (or itself).

    Raises:
        PolicyError: An unknown name or option (with the nearest known one), or a value that is
            not of the option's kind or out of its range.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise PolicyError(f"policy {policy!r} is neither a string nor a Policy")
    head, plus, tail = policy.partition("+")
    name, options = split_rule(head, policy)
    if name == "none":
        if options or plus:
            what = "options" if options else "acceptance: there is nothing to accept"
            raise PolicyError(f"policy {policy!r}: 'none' takes no {what}")
        return Policy.none()
    if name == "bild":
        if plus:
            raise PolicyError(
                f"policy {policy!r}: 'bild' names its acceptance already; to combine it with "
                "another lookahead write e.g. 'dynamic+bild:rollback=3'"
            )
        return _parse_bild(options)
    lookahead = build_rule(lookahead_type(name), name, options)
    if not plus:
        return Policy(lookahead)
    rule, options = split_rule(tail, policy)
    if rule not in ACCEPTANCES:
        raise PolicyError(
            f"unknown acceptance {rule!r}; known: {', '.join(ACCEPTANCES)}"
            f"{nearest(rule, ACCEPTANCES)}"
        )
    return Policy(lookahead, build_rule(ACCEPTANCES[rule], rule, options))


def reads_files(policy: str) -> bool:
    """Whether a policy's string asks for a rule that reads a file: not to be taken from strangers.

    Raises:
        PolicyError: An unknown name.
    """
    name, _ = split_rule(policy.partition("+")[0], policy)
    if name in ("none", "bild"):
        return False
    kind: type[Any] = lookahead_type(name)
    hints = get_type_hints(kind)
    return any(hints[field.name] is str for field in dataclasses.fields(kind))


def lookahead_names() -> list[str]:
    """The names of all lookahead rules: the modules of `biglittle.lookahead`."""
    return [m.name for m in pkgutil.iter_modules(lookahead_package.__path__) if m.name != "base"]


def lookahead_type(name: str) -> type[Lookahead]:
    """The class of a lookahead by its name, or by its module's.

    Raises:
        PolicyError: An unknown name.
    """
    module = NAMED.get(name, name)
    known = lookahead_names()
    if module not in known:
        names = sorted({"none", "bild", *NAMED, *known})
        raise PolicyError(
            f"unknown policy {name!r}; known: {', '.join(names)}{nearest(name, names)}"
        )
    found = importlib.import_module(f"{lookahead_package.__name__}.{module}")
    for value in vars(found).values():
        if isinstance(value, type) and issubclass(value, Lookahead) and value is not Lookahead:
            return value
    raise PolicyError(f"lookahead module {module!r} defines no Lookahead")


def split_rule(text: str, policy: str) -> tuple[str, dict[str, str]]:
    """`name:a=1,b=2` → name and options."""
    name, _, rest = text.strip().partition(":")
    options: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not value.strip():
            raise PolicyError(f"policy {policy!r}: {item!r} is not of the form option=value")
        if key.strip() in options:
            raise PolicyError(f"policy {policy!r}: {key.strip()!r} is given twice")
        options[key.strip()] = value.strip()
    if not name:
        raise PolicyError(f"policy {policy!r} has no name; try 'dynamic'")
    return name.strip().lower(), options


def build_rule(
    kind: type[Any], name: str, options: dict[str, str], renamed: Mapping[str, str] = NOTHING
) -> Any:
    """An instance of a rule from its options as text.

    `name`, and `renamed` (field → option), are what the user knows the rule and its fields by.
    """
    hints = get_type_hints(kind)
    fields = {renamed.get(field.name, field.name): field.name for field in dataclasses.fields(kind)}
    for key in options:
        if key not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise PolicyError(f"{name}: unknown option {key!r}; {known}{nearest(key, fields)}")
    values = {
        fields[key]: _convert(name, key, text, hints[fields[key]]) for key, text in options.items()
    }
    try:
        return kind(**values)
    except PolicyError as error:
        message = str(error)
        for option, field in fields.items():
            message = message.replace(f"{kind.name}: {field}=", f"{name}: {option}=", 1)
        raise PolicyError(message) from None


def _convert(name: str, key: str, text: str, hint: Any) -> Any:
    """An option's value, as its field's type says."""
    if hint in KINDS:
        read, what = KINDS[hint]
        try:
            return read(text)
        except (KeyError, ValueError):
            raise PolicyError(f"{name}: {key}={text} is not {what}") from None
    if get_args(hint) and text not in get_args(hint):
        raise PolicyError(f"{name}: {key}={text} must be one of {', '.join(get_args(hint))}")
    return text


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split("/"))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("/"))


KINDS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    bool: (_truth, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    tuple[float, ...]: (_numbers, "numbers with slashes between, such as 1.1/1.2"),
    tuple[int, ...]: (_whole_numbers, "whole numbers with slashes between, such as 1/3"),
}
"""How an option's text is read, by the type of its field; and what it should be."""


def _parse_bild(options: dict[str, str]) -> Policy:
    """`bild`: the fallback lookahead's `threshold` goes by the name `fallback`."""
    ahead = ["fallback", "tokens"]
    rules = [field.name for field in dataclasses.fields(Bild)]
    for key in options:
        if key not in ahead and key not in rules:
            known = [*ahead, *rules]
            raise PolicyError(
                f"bild: unknown option {key!r}; it has {', '.join(known)}{nearest(key, known)}"
            )
    first = {key: text for key, text in options.items() if key in ahead}
    second = {key: text for key, text in options.items() if key not in ahead}
    return Policy(
        build_rule(Fallback, "bild", first, {"threshold": "fallback"}),
        build_rule(Bild, "bild", second),
    )


def _print_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "/".join(map(_print_value, value))
    short = isinstance(value, float) and float(f"{value:g}") == value
    text = f"{value:g}" if short else str(value)
    return text.replace("+", "") if isinstance(value, float) else text  # "+" joins two rules


def _changed(rule: Any) -> dict[str, str]:
    """The options of a rule that differ from its defaults."""
    return {
        field.name: _print_value(getattr(rule, field.name))
        for field in dataclasses.fields(rule)
        if getattr(rule, field.name) != field.default
    }


def print_rule(name: str, rule: Any) -> str:
    """A rule as `build_rule` reads it: its name, and the options that differ from the defaults."""
    options = ",".join(f"{key}={value}" for key, value in _changed(rule).items())
    return f"{name}:{options}" if options else name


def _print_rollback(rule: Bild) -> str:
    """BiLD's acceptance; its threshold is always printed."""
    options = {"rollback": _print_value(rule.rollback), **_changed(rule)}
    return "bild:" + ",".join(f"{key}={value}" for key, value in options.items())


def _print_bild(ahead: Fallback, rule: Bild) -> str:
    """BiLD's two thresholds are always printed: they are what a reader needs to know."""
    options = {"fallback": _print_value(ahead.threshold), "rollback": _print_value(rule.rollback)}
    rest = {**_changed(ahead), **_changed(rule)}
    options |= {key: value for key, value in rest.items() if key not in {"threshold", "rollback"}}
    return "bild:" + ",".join(f"{key}={value}" for key, value in options.items())
