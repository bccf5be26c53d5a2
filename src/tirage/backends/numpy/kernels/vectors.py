"""Folds of one block of logits, as explicit vector code: the loops where a draw spends its time.

Written as LLVM vectors rather than as Numba loops, so that width and speed do not hang on what the loop vectoriser
makes of a loop, and so that there is less to compile. Each operation is rounded once, without fastmath, exactly like
its scalar namesake in `bits`.

Every fold is called as `fold(x, block, operands)`: `x` float32 [V], `operands` a tuple of scalars. It gives a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tirage.backends.numpy.kernels.bits import intrinsic, splat
from tirage.exact.keys import FLT_MAX, TINY_BITS
from tirage.exact.weights import COEFFICIENTS, Q_LIMIT

BLOCK = 256
_LANES = 64
WORDS = BLOCK // _LANES
"""Words of bits that mark the logits of a block."""
_FEW = 16
_BIT, _WORD, _LONG = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_WORDS, _LONGS = ir.VectorType(_WORD, _LANES), ir.VectorType(_LONG, _LANES)
_REALS, _DOUBLES = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.DoubleType(), _LANES)
_BYTES = ir.IntType(8).as_pointer()
_AHEAD = 2048
"""Logits between a load and its prefetch: two pages, since the hardware's own prefetch stops at the end of each."""
_MOST, _LEAST = 0x7FFFFFFF, -0x80000000

Step = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]


def _all(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * _LANES)


def _words(value: int) -> Any:
    return _all(_WORDS, value)


def _fold(operands: tuple[Any, ...], sums: Sequence[tuple[str, Any]], *, marks: int = 0) -> Callable[[Step], Any]:
    """Decorator: an intrinsic from a step that maps a vector of logits to one vector for each of `sums`.

    `sums` names the reductions ("add", "smax", "smin") and the lane type of each result. The step ends with so many
    `marks`, vectors of bits, and the fold's last argument, uint64, gets those of the block, WORDS of each;
    what it has no room for is not written.
    """
    result = types.Tuple(tuple(types.int32 if lane == _WORD else types.uint64 for _, lane in sums))
    packed = types.Tuple(operands)

    def decorate(step: Step) -> Any:
        def generate(ctx, builder, signature, args):
            data = [ctx.make_array(signature.args[i])(ctx, builder, args[i]) for i in ((0, 3) if marks else (0,))]
            given = [builder.extract_value(args[2], i) for i in range(len(operands))]
            kinds = [value.type for value in given]
            function = _function(builder.module, step, sums, kinds, marks=marks)
            words = [data[1].data, data[1].nitems] if marks else []
            found = builder.call(function, [data[0].data, data[0].nitems, args[1], *given, *words])
            parts = [builder.extract_value(found, i) for i in range(len(sums))]
            return ctx.make_tuple(builder, signature.return_type, parts)

        if marks:
            return intrinsic(lambda _c, x, _block, _given, words: (result(x, types.int64, packed, words), generate))
        return intrinsic(lambda _c, x, _block, _given: (result(x, types.int64, packed), generate))

    return decorate


def _function(module, step, sums, kinds, *, marks: int):
    """The fold as a function of its own: inlined, its body would be optimised again wherever it is used."""
    name = f"tirage_fold_{step.__name__}"
    known = module.globals.get(name)
    if known is not None:
        return known
    row = ir.FloatType().as_pointer()
    result = ir.LiteralStructType([lane for _, lane in sums])
    places = [_LONG.as_pointer(), _LONG] if marks else []
    function = ir.Function(module, ir.FunctionType(result, [row, _LONG, _LONG, *kinds, *places]), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    data, size, block, *values = function.args
    room, words = (values.pop(), values.pop()) if marks else (None, None)
    given = [splat(builder, value, ir.VectorType(value.type, _LANES)) for value in values]
    totals = [cgutils.alloca_once_value(builder, ir.Constant(_few(lane), [_START[how]] * _FEW)) for how, lane in sums]

    def visit(index, logits):
        found = list(step(builder, logits, given))
        for part in range(marks):
            at = builder.add(index, _LONG(part * WORDS))
            with builder.if_then(builder.icmp_signed("<", at, room)):
                builder.store(builder.bitcast(found[len(sums) + part], _LONG), builder.gep(words, [at]))
        for (how, _), total, value in zip(sums, totals, found[: len(sums)], strict=True):
            builder.store(_JOIN[how](builder, builder.load(total), _folded(builder, how, value)), total)

    for part in range(marks):
        with builder.if_then(builder.icmp_signed("<", _LONG(part * WORDS), room)):
            for i in range(WORDS):
                builder.store(_LONG(0), builder.gep(words, [_LONG(part * WORDS + i)]))
    _each(builder, data, size, block, visit)
    found = ir.Constant(result, ir.Undefined)
    for i, ((how, _), total) in enumerate(zip(sums, totals, strict=True)):
        found = builder.insert_value(found, _reduced(builder, how, builder.load(total)), i)
    builder.ret(found)
    return function


def _few(lane: Any) -> Any:
    return ir.VectorType(lane, _FEW)


def _folded(builder, how, value):
    """The vector folded upon itself down to `_FEW` lanes: narrow totals leave registers to the step."""
    while value.type.count > _FEW:
        half = value.type.count // 2
        kind = ir.VectorType(_WORD, half)
        low, high = (ir.Constant(kind, list(range(start, start + half))) for start in (0, half))
        none = ir.Constant(value.type, ir.Undefined)
        value = _JOIN[how](builder, builder.shuffle_vector(value, none, low), builder.shuffle_vector(value, none, high))
    return value


_START = {"add": 0, "smax": _LEAST, "smin": _MOST}
_JOIN: dict[str, Callable[..., Any]] = {
    "add": lambda b, x, y: b.add(x, y),
    "smax": lambda b, x, y: b.select(b.icmp_signed(">", y, x), y, x),
    "smin": lambda b, x, y: b.select(b.icmp_signed("<", y, x), y, x),
}


def _reduced(builder, how, value):
    lane = value.type.element
    name = f"llvm.vector.reduce.{how}.v{value.type.count}i{lane.width}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lane, [value.type]), name)
    return builder.call(function, [value])


def _each(builder, data, size, block, visit):
    """Call `visit` once, in a loop over the vectors of a block; the row's last one is padded with -inf."""
    start = builder.mul(block, _LONG(BLOCK))
    left = builder.sub(size, start)
    left = builder.select(builder.icmp_signed("<", left, _LONG(BLOCK)), left, _LONG(BLOCK))
    full, rest = builder.udiv(left, _LONG(_LANES)), builder.urem(left, _LONG(_LANES))
    from_row = builder.gep(data, [start])
    pad = cgutils.alloca_once(builder, ir.FloatType(), size=_LANES)
    with builder.if_then(builder.icmp_unsigned("!=", rest, _LONG(0)), likely=False):
        filler = builder.store(_all(_REALS, float("-inf")), builder.bitcast(pad, _REALS.as_pointer()))
        filler.align = 4
        last = builder.gep(from_row, [builder.mul(full, _LONG(_LANES))])
        cgutils.raw_memcpy(builder, pad, last, rest, 4)
    rounds = builder.add(full, builder.zext(builder.icmp_unsigned("!=", rest, _LONG(0)), _LONG))
    with cgutils.for_range(builder, rounds, intp=_LONG) as loop:
        at = builder.gep(from_row, [builder.mul(loop.index, _LONG(_LANES))])
        at = builder.select(builder.icmp_unsigned("<", loop.index, full), at, pad)
        _prefetch(builder, at)
        logits = builder.load(builder.bitcast(at, _REALS.as_pointer()))
        logits.align = 4
        visit(loop.index, logits)


def _prefetch(builder, at):
    """Ask for the logits that come `_AHEAD` later; behind the end of the row nothing is read, and nothing faults."""
    fetch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [_BYTES, _WORD, _WORD, _WORD]), "llvm.prefetch.p0i8"
    )
    for line in range(0, _LANES, 16):
        later = builder.bitcast(builder.gep(at, [_LONG(_AHEAD + line)]), _BYTES)
        builder.call(fetch, [later, _WORD(0), _WORD(3), _WORD(1)])


# --- what a vector of logits is worth; the scalar originals are in `bits` -----------------------------------------


def _raw_keys(b, x):
    bits = b.bitcast(x, _WORDS)
    return b.xor(bits, b.and_(b.ashr(bits, _words(31)), _words(_MOST)))


def _keys(b, x):
    bits = b.bitcast(x, _WORDS)
    sign = b.ashr(bits, _words(31))
    return b.sub(b.xor(bits, b.and_(sign, _words(_MOST))), sign)


def _exponents(b, x, m, c):
    y = b.fmul(b.fsub(m, x), c)
    limit = _all(_REALS, float(Q_LIMIT))
    return b.fptosi(b.select(b.fcmp_ordered("<", y, limit), y, limit), _WORDS)


def _weights(b, q):
    one = b.or_(b.and_(q, _words(0x7FFFFF)), _words(0x3F800000))
    f = b.fsub(b.bitcast(one, _REALS), _all(_REALS, 1.0))
    r = _all(_REALS, float(COEFFICIENTS[5]))
    for term in COEFFICIENTS[4::-1]:
        r = b.fadd(_all(_REALS, float(term)), b.fmul(r, f))
    return b.bitcast(b.sub(b.bitcast(r, _WORDS), b.and_(q, _words(-0x800000))), _REALS)


def _halves(b, w):
    """Weights as two int32 halves, exactly: their sums over a block stay narrow."""
    high = b.fptosi(b.fmul(w, _all(_REALS, 2.0**-20)), _WORDS)
    rest = b.fsub(w, b.fmul(b.sitofp(high, _REALS), _all(_REALS, 2.0**20)))
    return high, b.fptosi(rest, _WORDS)


def _within(b, k, low, high):
    return b.and_(b.icmp_signed(">=", k, low), b.icmp_signed("<=", k, high))


def _where(b, mask, value):
    return b.select(mask, value, ir.Constant(value.type, None))


# --- folds --------------------------------------------------------------------------------------------------------

_I4, _F4, _F8 = types.int32, types.float32, types.float64


@_fold((), [("smax", _WORD), ("smin", _WORD)])
def extremes(b, x, _given):
    """(largest, smallest) raw key."""
    k = _raw_keys(b, x)
    return k, k


@_fold((_F4, _F4), [("add", _WORD), ("add", _WORD)])
def heavy(b, x, given):
    """Mass of all logits for (m, c), as halves: high * 2^20 + low."""
    return _halves(b, _weights(b, _exponents(b, x, *given)))


@_fold((_F4, _F4), [("add", _WORD)])
def light(b, x, given):
    """Mass, modulo 2^32, of logits that all lie 17 octaves or more below m."""
    return (b.fptosi(_weights(b, _exponents(b, x, *given)), _WORDS),)


@_fold((_I4, _I4), [("add", _WORD)])
def tally(b, x, given):
    """How many keys lie in [low, high]."""
    return (b.zext(_within(b, _keys(b, x), *given), _WORDS),)


@_fold((_I4, _I4), [("smax", _WORD), ("smin", _WORD)])
def ends(b, x, given):
    """(largest, smallest) key in [low, high]."""
    k = _keys(b, x)
    mask = _within(b, k, *given)
    return b.select(mask, k, _words(_LEAST)), b.select(mask, k, _words(_MOST))


@_fold((_F4, _F4, _I4, _I4), [("add", _WORD)] * 3)
def part(b, x, given):
    """(high, low, count) of the keys in [low, high], for (m, c, low, high)."""
    m, c, low, high = given
    mask = _within(b, _keys(b, x), low, high)
    h, rest = _halves(b, _weights(b, _exponents(b, x, m, c)))
    return _where(b, mask, h), _where(b, mask, rest), b.zext(mask, _WORDS)


@_fold((_F4, _F4, _I4, _I4), [("add", _WORD)] * 5, marks=2)
def split(b, x, given):
    """(high, low) of all logits, (high, low, count) of those with q <= near; marks near < q <= far, and q <= near.

    For (m, c, near, far).
    """
    m, c, near, far = given
    q = _exponents(b, x, m, c)
    h, rest = _halves(b, _weights(b, q))
    inner = b.icmp_signed("<=", q, near)
    between = b.and_(b.icmp_signed("<=", q, far), b.not_(inner))
    return h, rest, _where(b, inner, h), _where(b, inner, rest), b.zext(inner, _WORDS), between, inner


@_fold((_F4, _F4, _I4, _I4), [("add", _WORD)] * 3 + [("add", _LONG)] * 2)
def moments(b, x, given):
    """`part`, and the sums of high * q and of low * q."""
    m, c, low, high = given
    mask = _within(b, _keys(b, x), low, high)
    q = _where(b, mask, _exponents(b, x, m, c))
    h, rest = (_where(b, mask, half) for half in _halves(b, _weights(b, q)))
    long_q = b.zext(q, _LONGS)
    return h, rest, b.zext(mask, _WORDS), b.mul(b.zext(h, _LONGS), long_q), b.mul(b.zext(rest, _LONGS), long_q)


@_fold((_F4, _F8, _I4, _I4), [("add", _WORD)] + [("add", _LONG)] * 3)
def spread(b, x, given):
    """(count, sum of v, sums of the high and low words of v * v) of the keys in [low, high], for (top, unit, ...)."""
    top, unit, low, high = given
    mask = _within(b, _keys(b, x), low, high)
    d = b.fsub(top, x)
    big = _all(_REALS, float(FLT_MAX))
    d = b.select(b.fcmp_ordered("<", d, big), d, big)
    d = b.select(b.icmp_signed(">", b.bitcast(d, _WORDS), _words(int(TINY_BITS))), d, _all(_REALS, 0.0))
    v = _where(b, mask, b.fptosi(b.fmul(b.fpext(d, _DOUBLES), unit), _WORDS))
    v = b.zext(v, _LONGS)
    square = b.mul(v, v)
    low_word = b.and_(square, _all(_LONGS, 0xFFFFFFFF))
    return b.zext(mask, _WORDS), v, b.lshr(square, _all(_LONGS, 32)), low_word


# --- the law of a row ---------------------------------------------------------------------------------------------


@intrinsic
def shares(_context, x, _block, _given, _law):
    """Writes w / total for the tokens of a block in the window from (high, high_id) to (low, low_id), 0 for others.

    For (m, c, low, low_id, high, high_id, total); `_law` float64 is as long as the row.
    """
    given = types.Tuple((_F4, _F4, _I4, _I4, _I4, _I4, _F8))

    def build(ctx, builder, signature, args):
        row, law = (ctx.make_array(signature.args[i])(ctx, builder, args[i]) for i in (0, 3))
        values = [builder.extract_value(args[2], i) for i in range(7)]
        m, c, *ends, total = (splat(builder, value, ir.VectorType(value.type, _LANES)) for value in values)

        def visit(index, logits):
            at = builder.add(builder.mul(args[1], _LONG(BLOCK)), builder.mul(index, _LONG(_LANES)))
            inside = _members(builder, _keys(builder, logits), at, ends)
            w = _whole(builder, _weights(builder, _exponents(builder, logits, m, c)))
            value = _where(builder, inside, builder.fdiv(builder.fpext(w, _DOUBLES), total))
            _store(builder, value, builder.gep(law.data, [at]), builder.sub(row.nitems, at))

        _each(builder, row.data, row.nitems, args[1], visit)
        return ctx.get_dummy_value()

    return types.void(x, types.int64, given, _law), build


def _members(b, k, at, ends):
    """Lanes of a vector that starts at token `at` whose keys `k` lie in a window, ids deciding at its ends."""
    low, low_id, high, high_id = ends
    lanes = ir.Constant(_WORDS, list(range(_LANES)))
    ids = b.add(splat(b, b.trunc(at, _WORD), _WORDS), lanes)
    above = b.or_(b.icmp_signed(">", k, low), b.and_(b.icmp_signed("==", k, low), b.icmp_signed("<=", ids, low_id)))
    below = b.or_(b.icmp_signed("<", k, high), b.and_(b.icmp_signed("==", k, high), b.icmp_signed(">=", ids, high_id)))
    return b.and_(above, below)


def _whole(b, w):
    """Integer weights, as the float32 numbers that they are."""
    function = ir.FunctionType(_REALS, [_REALS])
    return b.call(cgutils.get_or_insert_function(b.module, function, f"llvm.trunc.v{_LANES}f32"), [w])


def _store(builder, value, place, left):
    """Store a vector of float64, or its first `left` lanes where the row ends."""
    with builder.if_else(builder.icmp_signed(">=", left, _LONG(_LANES)), likely=True) as (full, rest):
        with full:
            builder.store(value, builder.bitcast(place, _DOUBLES.as_pointer())).align = 8
        with rest:
            kept = cgutils.alloca_once_value(builder, value)
            cgutils.raw_memcpy(builder, place, builder.bitcast(kept, place.type), left, 8)


# --- probes: a sample of a row ------------------------------------------------------------------------------------

PROBED_BLOCKS = 8
_RUN = _LANES // PROBED_BLOCKS
MASS_OF_UNIT = 4096.0


@intrinsic
def probe(_context, x, _block, _given, _orders, _units, _at):
    """(sum of units / 64, largest exponent of a logit that has any), of a short run in each of 8 blocks, a vector.

    For (m, c, low, high). Stores from `_at` on the exponents, and the weights in units of 2^12: 0 for a key outside
    [low, high]. The blocks must be whole. Where in a block the run lies differs from block to block.
    """
    packed = types.Tuple((_F4, _F4, _I4, _I4))

    def build(ctx, builder, signature, args):
        arrays = [ctx.make_array(signature.args[i])(ctx, builder, args[i]) for i in (0, 3, 4)]
        given = [builder.extract_value(args[2], i) for i in range(4)]
        wide = [splat(builder, value, ir.VectorType(value.type, _LANES)) for value in given]
        logits = _joined_runs(builder, arrays[0].data, args[1])
        q, units = _probed(builder, logits, wide)
        for array, value in ((arrays[1], q), (arrays[2], units)):
            place = builder.bitcast(builder.gep(array.data, [args[5]]), _WORDS.as_pointer())
            builder.store(value, place).align = 4
        mass = _reduced(builder, "add", _folded(builder, "add", builder.lshr(units, _words(6))))
        widest = builder.select(builder.icmp_signed(">", units, _words(0)), q, _words(0))
        return ctx.make_tuple(
            builder, signature.return_type, [mass, _reduced(builder, "smax", _folded(builder, "smax", widest))]
        )

    result = types.Tuple((types.int32, types.int32))
    return result(x, types.int64, packed, _orders, _units, types.int64), build


def _joined_runs(builder, data, block):
    """A vector of the runs of 8 blocks, the first of which is `block`."""
    kind = ir.VectorType(ir.FloatType(), _RUN)
    runs = []
    for i in range(PROBED_BLOCKS):
        j = builder.add(block, _LONG(i))
        within = builder.and_(builder.mul(j, _LONG(13 * _RUN)), _LONG(BLOCK - _RUN))
        at = builder.gep(data, [builder.add(builder.mul(j, _LONG(BLOCK)), within)])
        runs.append(builder.load(builder.bitcast(at, kind.as_pointer())))
        runs[-1].align = 4
    while len(runs) > 1:
        both = range(2 * runs[0].type.count)
        order = ir.Constant(ir.VectorType(_WORD, len(both)), list(both))
        runs = [builder.shuffle_vector(a, b, order) for a, b in zip(runs[::2], runs[1::2], strict=True)]
    return runs[0]


def _probed(b, x, given):
    """(exponents, weights in units) of a vector of probes."""
    m, c, low, high = given
    q = b.select(_within(b, _keys(b, x), low, high), _exponents(b, x, m, c), _words(Q_LIMIT))
    return q, b.fptosi(b.fmul(_weights(b, q), _all(_REALS, 1 / MASS_OF_UNIT)), _WORDS)
