"""Reads queries from text."""

import re
from typing import NoReturn

from sheafprop.errors import DataError
from sheafprop.query.query import STRUCTURES, Query, combine

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<mark>[(),;])
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | '(?P<single>(?:[^'\\]|\\.)*)'
      | (?P<bare>[^\s(),;"'][^\s(),;]*)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_DEEPEST = 100
_QUOTING = (
    "; a label with spaces, commas, semicolons or brackets is put in quotation marks, as in "
    'via(treats, "Smith, John")'
)


def parse_query(text: str) -> Query:
    r"""Reads a query from text.

    .. code-block:: text

        query    = label
                 | via(relation, query)          all entities the relation leads to
                 | and(query, query, ...)        answers of all queries
                 | or(query, query, ...)         answers of any query
                 | not(query)                    all other entities; only in an "and"
                 | NAME(relation, ...; label, ...)   a named structure: 1p 2p 3p 2i 3i pi ip 2u up
                                                 2in 3in pin pni inp
        relation = label | inverse(label)        inverse: followed from tail to head

    Relations of a named structure are given in the order in which they are followed, branch by
    branch: :obj:`pi(r1, r2, r3; a, b)` is :obj:`and(via(r2, via(r1, a)), via(r3, b))`. Labels that
    contain spaces, commas, semicolons or brackets, or start with a quotation mark, must be quoted
    with single or double quotation marks; a backslash escapes the next character.

    Raises:
        DataError: If the text is not a query; the message names the position, counted from 1.
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                start = position + len(text[position:]) - len(text[position:].lstrip())
                self._fail("a quotation mark is not closed", start)
            kind = str(match.lastgroup)
            value = match.group(kind)
            start = match.start(kind) - (kind in ("double", "single"))
            if kind in ("double", "single"):
                value, kind = _ESCAPE.sub(r"\1", value), "label"
                if not value:
                    self._fail("a label is empty", start)
            self.tokens.append((kind, value, start))
            position = match.end()
        self.tokens.append(("end", "", len(text)))
        self.index = 0
        self.depth = 0

    def parse(self) -> Query:
        query = self._query()
        if self._kind != "end":
            self._fail(f"the query is complete, but more follows{_QUOTING}")
        return query

    @property
    def _kind(self) -> str:
        return self.tokens[self.index][0]

    @property
    def _value(self) -> str:
        return self.tokens[self.index][1]

    def _calls(self) -> bool:
        """Whether a name with an opening bracket comes next."""
        following = self.tokens[self.index + 1][:2] if self._kind == "bare" else None
        return following == ("mark", "(")

    def _query(self) -> Query:
        if not self._calls():
            return Query.entity(self._label("an entity or a query"))
        self.depth += 1
        if self.depth > _DEEPEST:
            self._fail(f"queries are nested {_DEEPEST} deep at most")
        query = self._operation()
        self.depth -= 1
        return query

    def _operation(self) -> Query:
        name, start = self._value, self.tokens[self.index][2]
        if name in ("via", "and", "or", "not", "inverse") or name in STRUCTURES:
            self.index += 2
        else:
            names = ", ".join(("via", "and", "or", "not", *STRUCTURES))
            self._fail(f"{name!r} is not an operator; expected one of {names}{_QUOTING}")
        if name == "inverse":
            self._fail("inverse(...) stands for a relation, as in via(inverse(r), a)", start)
        if name == "via":
            label, inverse = self._relation()
            self._mark(",", "between relation and query")
            query = self._query().via(label, inverse=inverse)
            self._mark(")", "after via(relation, query")
            return query
        if name == "not":
            query = ~self._query()
            self._mark(")", "after not(query")
            return query
        if name in STRUCTURES:
            return self._structure(name, start)
        queries = [self._query()]
        while self._next_is(","):
            queries.append(self._query())
        self._mark(")", f"or a comma in {name}(...)")
        if len(queries) < 2:
            self._fail(f"'{name}' joins at least two queries (got one)", start)
        return combine("and" if name == "and" else "or", queries)

    def _structure(self, name: str, start: int) -> Query:
        relations = [self._relation()]
        while self._next_is(","):
            relations.append(self._relation())
        self._mark(";", f"between relations and entities of {name}(...)")
        anchors = [self._label("an entity")]
        while self._next_is(","):
            anchors.append(self._label("an entity"))
        self._mark(")", f"or a comma in {name}(...)")
        try:
            return Query.of(name, relations, anchors)
        except ValueError as error:
            self._fail(str(error), start)

    def _relation(self) -> tuple[str, bool]:
        inverse = self._calls() and self._value == "inverse"
        if inverse:
            self.index += 2
        elif self._calls():
            self._fail("a relation is a label or inverse(label)")
        if inverse and self._calls():
            self._fail("inverse(...) takes the label of a relation")
        label = self._label("a relation")
        if inverse:
            self._mark(")", "after inverse(relation")
        return label, inverse

    def _label(self, what: str) -> str:
        if self._kind not in ("bare", "label"):
            self._fail(f"expected {what}")
        value = self._value
        self.index += 1
        return value

    def _next_is(self, mark: str) -> bool:
        found = self.tokens[self.index][:2] == ("mark", mark)
        self.index += found
        return found

    def _mark(self, mark: str, where: str) -> None:
        if not self._next_is(mark):
            after = self.tokens[self.index - 1][0] == "bare" and self._value not in (")", "")
            self._fail(f"expected '{mark}' {where}{_QUOTING if after else ''}")

    def _fail(self, problem: str, start: int | None = None) -> NoReturn:
        if start is None:
            start = self.tokens[self.index][2]
        rest = self.text[start:].strip()
        shown = repr(rest if len(rest) <= 40 else rest[:37] + "...") if rest else "the end"
        raise DataError(f"query, position {start + 1}: {problem} (got {shown})")
