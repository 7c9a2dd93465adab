"""The errors that are meant for users: each says what was wrong, where, and what to do."""


class SheafpropError(Exception):
    """Base class of every error that sheafprop raises on purpose."""


class DataError(SheafpropError, ValueError):
    """A file, a triple or a label that cannot be used as it is."""


class NotTriplesError(DataError):
    """A table that holds something else than triples, such as nodes or literals."""


class UnknownRelationError(DataError):
    """Triples use a relation for which the model has no restriction maps."""


class FormatError(SheafpropError, ValueError):
    """A stored model that is truncated, edited or of another format version."""


class DivergenceError(SheafpropError, ArithmeticError):
    """Training or propagation left the finite numbers."""
