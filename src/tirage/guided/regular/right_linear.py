"""Right-linear equations between expressions, solved by Arden's rule: X = A X | B has the least solution A* B."""

from __future__ import annotations

from collections.abc import Mapping

from tirage.guided.reduction import positions, references
from tirage.guided.regular.expression import (
    EMPTY,
    NOTHING,
    Alternatives,
    Expression,
    Repeat,
    RuleReference,
    Sequence,
    choice,
    sequence,
)
from tirage.workers.cancel import checkpoint

LinearForm = dict[str | None, Expression]
"""The coefficient of each unknown, and under None what stands alone."""


class NotLinearError(ValueError):
    """An unknown stands elsewhere than at the end of a sequence."""


class TooLargeError(ValueError):
    """A solution has too many positions of characters."""


def solve(equations: Mapping[str, Expression], wanted: str, *, limit: int | None = None) -> Expression:
    """The least solution for one unknown; the unknowns are references, each at the end of what it stands in.

    References to other names are constants. Raises NotLinearError if an unknown stands elsewhere, and TooLargeError
    when an expression has more than `limit` positions of characters.
    """
    forms = {name: linear_form(equations[name], set(equations)) for name in reached_from(wanted, equations)}
    for name in [name for name in forms if name != wanted]:
        solved = starred(forms.pop(name), name)
        if limit is not None and sum(map(positions, solved.values())) > limit:
            raise TooLargeError
        forms = {other: replaced(form, name, solved) for other, form in forms.items()}
    return sum_of(starred(forms[wanted], wanted))


def reached_from(wanted: str, equations: Mapping[str, Expression]) -> list[str]:
    """The unknowns that the equation of one leads to, itself included."""
    found = {wanted: None}
    todo = [wanted]
    while todo:
        for name in references(equations[todo.pop()]):
            if name in equations and name not in found:
                found[name] = None
                todo.append(name)
    return list(found)


def linear_form(node: Expression, names: set[str]) -> LinearForm:
    """An expression as a sum of coefficients times unknowns."""
    match node:
        case RuleReference(name) if name in names:
            return {name: EMPTY}
        case Sequence(parts) if parts:
            lead = sequence(list(parts[:-1]))
            check_constant(lead, names)
            return times(lead, linear_form(parts[-1], names))
        case Alternatives(parts):
            return added([linear_form(part, names) for part in parts])
    check_constant(node, names)
    return {None: node}


def check_constant(node: Expression, names: set[str]) -> None:
    """Raises NotLinearError for an expression with an unknown in it."""
    if not names.isdisjoint(references(node)):
        raise NotLinearError


def times(lead: Expression, form: LinearForm) -> LinearForm:
    """The form after an expression."""
    return {name: sequence([lead, coefficient]) for name, coefficient in form.items()}


def added(forms: list[LinearForm]) -> LinearForm:
    """The alternatives of several forms."""
    names = dict.fromkeys(name for form in forms for name in form)
    return {name: choice([form[name] for form in forms if name in form]) for name in names}


def starred(form: LinearForm, name: str) -> LinearForm:
    """The solution of an equation for its own unknown."""
    rest = {other: coefficient for other, coefficient in form.items() if other != name}
    again = form.get(name, NOTHING)
    return rest if again in (EMPTY, NOTHING) else times(Repeat(again, 0, None), rest)


def replaced(form: LinearForm, name: str, solved: LinearForm) -> LinearForm:
    """A form with an unknown replaced by its solution."""
    checkpoint()
    rest = {other: coefficient for other, coefficient in form.items() if other != name}
    return added([rest, times(form[name], solved)]) if name in form else form


def sum_of(form: LinearForm) -> Expression:
    """A form without unknowns as one expression."""
    return choice([part if name is None else sequence([part, RuleReference(name)]) for name, part in form.items()])
