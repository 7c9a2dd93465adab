"""Sums of rows that stay in registers; imported where loops are compiled.

What numba compiles writes a sum back after every few entries, and finds out anew how wide a row is.
Here the width is a constant, so that entries of 16 to 32 columns take about half the time. The
functions that are made here are called in compiled loops only, and add to some neighbouring columns
of a row of ``out``. The same columns of later entries are fetched ahead.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_CACHE_LINE = 64
# Fused multiply-adds only, as in the loops.
_FLAGS = ("contract", "nsz")


def block_sum(num_bytes: int) -> Any:
    """A function ``add(start, stop, ahead, first, col, x, out, v, value)`` for compiled loops.

    It adds ``value[e] x[col[e]]`` for the entries from ``start`` to ``stop`` to ``out[v]``, four at
    a time, in the columns from ``first`` on. Without values (None) these are ones.

    Args:
        num_bytes (int): The size of the columns.
    """

    def add(sums: "_Sums", value: Any) -> None:
        def rows(e: Any, count: int) -> Any:
            found = []
            for one in sums.following(e, count):
                row = sums.row(one)
                found.append(row if value is None else sums.multiply(sums.factor(value, one), row))
            return sums.add_pairs(found)

        total = sums.variable(sums.load_out())
        sums.run(lambda e, count: total.add(rows(e, count)), 4)
        sums.store_out(total.value)

    return _intrinsic(num_bytes, 1, add)


def scaled_block_sum(num_bytes: int) -> Any:
    """A function ``add(start, stop, ahead, first, col, x, out, v, weight, label, place, table)``.

    It adds ``weight[e] table[label[e]] x[col[e]]`` likewise, one entry after the other; ``place``
    is the first of the columns in the table.

    Args:
        num_bytes (int): The size of the columns.
    """

    def add(sums: "_Sums", weight: Any, label: Any, place: Any, table: Any) -> None:
        def product(e: Any, count: int) -> Any:
            factor = sums.vector(table, sums.index(label, e), place)
            if weight is not None:
                factor = sums.multiply(sums.factor(weight, e), factor)
            return sums.multiply(factor, sums.row(e))

        total = sums.variable(sums.load_out())
        sums.run(lambda e, count: total.add(product(e, count)), 1)
        sums.store_out(total.value)

    return _intrinsic(num_bytes, 1, add)


def complex_block_sum(num_bytes: int) -> Any:
    """A function like that of :func:`scaled_block_sum` for pairs of columns, complex numbers.

    The last argument is followed by the imaginary parts of the table. Entries are added two at a
    time to zero, and their sum to ``out[v]``.

    Args:
        num_bytes (int): The size of the columns.
    """

    def add(sums: "_Sums", weight: Any, label: Any, place: Any, real: Any, imaginary: Any) -> None:
        def parts(e: Any) -> tuple[Any, Any]:
            p, q = sums.halves(sums.row(e))
            if weight is not None:
                p, q = (sums.multiply(sums.factor(weight, e), part) for part in (p, q))
            kind = sums.index(label, e)
            a, b = (sums.vector(table, kind, place) for table in (real, imaginary))
            return (
                sums.subtract(sums.multiply(a, p), sums.multiply(b, q)),
                sums.add(sums.multiply(a, q), sums.multiply(b, p)),
            )

        def collect(e: Any, count: int) -> None:
            found = [parts(one) for one in sums.following(e, count)]
            for total, part in zip(totals, zip(*found, strict=True), strict=True):
                total.add(sums.add_pairs(list(part)))

        totals = [sums.variable(sums.zero()) for _ in range(2)]
        sums.run(collect, 2)
        both = sums.merge(*(total.value for total in totals))
        sums.store_out(sums.add(sums.load_out(), both))

    return _intrinsic(num_bytes, 2, add)


def _intrinsic(num_bytes: int, pair: int, add: Callable[..., None]) -> Any:
    def typing(context: Any, start, stop, ahead, first, col, x, out, v, *more):  # type: ignore[no-untyped-def]
        numbers = types.intp, types.intp, types.intp, types.intp
        others = [types.intp if isinstance(kind, types.Integer) else kind for kind in more]

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kinds = signature.args[-1].types
            given = cgutils.unpack_tuple(builder, arguments[-1])
            sums = _Sums(num_bytes, pair, context, builder, signature.args[:-1], arguments[:-1])
            add(sums, *(sums.argument(*both) for both in zip(kinds, given, strict=True)))
            return context.get_dummy_value()

        kinds = types.Tuple(others)
        return types.void(*numbers, col, x, out, types.intp, kinds), generate

    return intrinsic(typing)


class _Variable:
    """A sum that changes from one pass of a loop to the next."""

    def __init__(self, sums: "_Sums", value: Any):
        self._sums, self._place = sums, cgutils.alloca_once(sums.builder, value.type)
        sums.builder.store(value, self._place)

    @property
    def value(self) -> Any:
        return self._sums.builder.load(self._place)

    def add(self, term: Any) -> None:
        self._sums.builder.store(self._sums.add(self.value, term), self._place)


class _Sums:
    """What the functions have in common: the columns, their loop, and the instructions."""

    def __init__(
        self, num_bytes: int, pair: int, context: Any, builder: Any, kinds: Any, arguments: Any
    ):
        self.context, self.builder = context, builder
        self._start, self._stop, self._ahead, self._first, _, _, _, v = arguments
        col, self._x, out = map(self.argument, kinds[4:7], arguments[4:7])
        self._col = col
        self._number = context.get_data_type(kinds[5].dtype)
        self._size = context.get_abi_sizeof(self._number)
        # Sizes below that of a number are compiled as well, and not called.
        self._lanes = max(1, num_bytes // (pair * self._size))
        self._count, self._lines = pair * self._lanes, range(0, num_bytes, _CACHE_LINE)
        self._last = builder.sub(cgutils.unpack_tuple(builder, col.shape)[0], self._int(1))
        self._out = self._place(out, v, self._first)

    def argument(self, kind: Any, value: Any) -> Any:
        """An array as its data and shape; None for None; a number as it is."""
        if isinstance(kind, types.Array):
            return self.context.make_array(kind)(self.context, self.builder, value)
        return None if kind == types.none else value

    def run(self, body: Callable[[Any, int], None], count: int) -> None:
        """Calls ``body(e, count)`` for as many entries together as there are, then for each."""
        builder = self.builder
        entry = cgutils.alloca_once_value(builder, self._start)
        for together in dict.fromkeys((count, 1)):
            names = f"more{together}", f"add{together}", f"done{together}"
            condition, add, after = map(builder.append_basic_block, names)
            builder.branch(condition)
            builder.position_at_end(condition)
            e = builder.load(entry)
            behind = builder.add(e, self._int(together))
            builder.cbranch(builder.icmp_signed("<=", behind, self._stop), add, after)
            builder.position_at_end(add)
            for one in self.following(e, together):
                self._fetch(one)
            body(e, together)
            builder.store(behind, entry)
            builder.branch(condition)
            builder.position_at_end(after)

    def following(self, e: Any, count: int) -> list[Any]:
        """The numbers of so many entries from one on."""
        return [self.builder.add(e, self._int(k)) for k in range(count)]

    # Memory ---------------------------------------------------------------------------------------

    def index(self, array: Any, e: Any) -> Any:
        value = self.builder.load(self.builder.gep(array.data, [e]))
        return value if value.type == self._last.type else self.builder.zext(value, self._last.type)

    def row(self, e: Any) -> Any:
        """The columns of the row that an entry names."""
        return self._load(self._place(self._x, self.index(self._col, e), self._first), self._count)

    def vector(self, table: Any, row: Any, column: Any) -> Any:
        return self._load(self._place(table, row, column), self._lanes)

    def load_out(self) -> Any:
        return self._load(self._out, self._count)

    def store_out(self, value: Any) -> None:
        place = self.builder.bitcast(self._out, value.type.as_pointer())
        self.builder.store(value, place, align=self._size)

    def variable(self, value: Any) -> _Variable:
        return _Variable(self, value)

    def zero(self) -> Any:
        return ir.Constant(ir.VectorType(self._number, self._lanes), None)

    def factor(self, values: Any, e: Any) -> Any:
        """The number of an entry in every lane."""
        builder = self.builder
        value = builder.load(builder.gep(values.data, [e]))
        if isinstance(value.type, ir.IntType):
            value = builder.uitofp(value, self._number)
        undefined = ir.Constant(ir.VectorType(self._number, self._lanes), ir.Undefined)
        single = builder.insert_element(undefined, value, ir.IntType(32)(0))
        return self._shuffle(single, undefined, [0] * self._lanes)

    def _int(self, value: int) -> Any:
        return self.context.get_constant(types.intp, value)

    def _place(self, array: Any, row: Any, column: Any) -> Any:
        width = cgutils.unpack_tuple(self.builder, array.shape)[1]
        offset = self.builder.add(self.builder.mul(row, width), column)
        return self.builder.gep(array.data, [offset])

    def _load(self, place: Any, count: int) -> Any:
        kind = ir.VectorType(self._number, count)
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=self._size)

    def _fetch(self, e: Any) -> None:
        builder, flag = self.builder, ir.IntType(32)
        far = builder.add(e, self._ahead)
        far = builder.select(builder.icmp_signed("<", far, self._last), far, self._last)
        row = self._place(self._x, self.index(self._col, far), self._first)
        first = builder.bitcast(row, cgutils.voidptr_t)
        call = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        for offset in self._lines:
            # Read, keep in every cache, data.
            place = builder.gep(first, [self._int(offset)])
            builder.call(function, [place, flag(0), flag(3), flag(1)])

    # Arithmetic -----------------------------------------------------------------------------------

    def add(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b, flags=_FLAGS)

    def subtract(self, a: Any, b: Any) -> Any:
        return self.builder.fsub(a, b, flags=_FLAGS)

    def multiply(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b, flags=_FLAGS)

    def add_pairs(self, terms: list[Any]) -> Any:
        """The sum of one, two or four terms, of neighbours first."""
        while len(terms) > 1:
            terms = [self.add(*terms[i : i + 2]) for i in range(0, len(terms), 2)]
        return terms[0]

    def halves(self, pairs: Any) -> tuple[Any, Any]:
        """The first and the second numbers of pairs."""
        lanes = range(self._lanes)
        return (
            self._shuffle(pairs, pairs, [2 * k for k in lanes]),
            self._shuffle(pairs, pairs, [2 * k + 1 for k in lanes]),
        )

    def merge(self, a: Any, b: Any) -> Any:
        """Pairs of the numbers of both."""
        return self._shuffle(
            a, b, [k + half for k in range(self._lanes) for half in (0, self._lanes)]
        )

    def _shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        number = ir.IntType(32)
        mask = ir.Constant(ir.VectorType(number, len(lanes)), [number(lane) for lane in lanes])
        return self.builder.shuffle_vector(a, b, mask)
