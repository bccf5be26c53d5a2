"""Triton's interpreter for many programs at once: the Python of a kernel runs once, its operations run for all of them.

The interpreter runs the Python of a kernel for each program, and works out anew which types, casts and broadcasts every
operation needs; that takes hundreds of times as long as the operations. All of it follows from the types of the
arguments. So a device function is kept as a tree of what it asks of the interpreter's builder: stretches of operations,
each of which ends where Python asks for a value (`if`, `while`, `range`) and goes on by the answer. The builder's own
methods do the operations, on arrays [programs, size]; programs part at a question and meet again at the function's end.
At an answer that no program gave before, the interpreter itself runs the function for one program, which adds to the
tree. What it writes is undone, and before it what all programs have written in this function, which then begins anew.
Programs must not depend on each other, but for what they read behind an atomic operation that acquires and releases.
All programs that are together do such an operation at once, in their order, and it is kept what it gave each of them
and what stood by then where anything was written. A program that is run again is given the same, and finds that memory
there. Other atomic operations are done only when all programs run: no question may hang on what they leave,
unless no other program does them where this one does: their scope is then one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

Rows = NDArray[np.int64]
Picker = Callable[[Sequence[Any]], Sequence[Any]]
Reader = Callable[[NDArray], NDArray]


# --- a function as a tree -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stretch:
    """Operations without a question between them, and the question or the return that ends them.

    A step is a function and which of the values so far are its arguments; its result is the next value. `first` is the
    number of values before the stretch, `needed` are those of them that it or a later stretch uses. `read` turns the
    value that is `asked` for into the answer.
    """

    first: int
    steps: list[tuple[Callable[..., Any], Picker]] = field(default_factory=list)
    needed: set[int] = field(default_factory=set)
    asked: int | None = None
    read: Reader = np.asarray
    branches: dict[int, Stretch] = field(default_factory=dict)
    returned: list[int] | None = None

    def is_complete(self) -> bool:
        return self.asked is not None or self.returned is not None

    def branch(self, answer: int, values: int) -> Stretch:
        """The stretch that follows an answer, when there are so many values."""
        return self.branches.setdefault(int(answer), Stretch(values))


@dataclass(slots=True)
class Call:
    """A call of a function: the numbers of its programs in the launch, and how much was written before it.

    `parts` says of the programs that came to a return in the same way which they are, and what they return.
    """

    programs: Rows
    begun: int
    parts: list[tuple[Rows, list[TensorHandle]]] = field(default_factory=list)


class Function:
    """A device function for arguments of certain types."""

    def __init__(self, run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], inputs: int) -> None:
        self.run, self.args, self.kwargs = run, args, kwargs
        self.start = Stretch(inputs)
        self.result: Any = None

    @classmethod
    def of(cls, run: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, inputs: int) -> Function:
        """The function for arguments like these; `inputs` is the number of its tensors."""
        kinds = [str(arg.type) if isinstance(arg, tl.tensor) else arg for arg in (*args, *kwargs.values())]
        return _functions.setdefault((run, *kinds, *kwargs), cls(run, args, kwargs, inputs))

    def __call__(self, *inputs: TensorHandle) -> list[TensorHandle]:
        """What the function returns for inputs [programs, size] or [1, size]: handles of the same shape."""
        rows, here, begun = np.arange(max(len(handle.data) for handle in inputs)), _met.here, len(_written)
        before = counted.bytes_read, counted.additions
        while True:
            counted.bytes_read, counted.additions = before
            call = Call(here, begun)
            try:
                self._follow(self.start, list(inputs), {rows.size: rows}, call)
            except _BegunAnewError:
                continue
            finally:
                _met.here = here
            return call.parts[0][1] if len(call.parts) == 1 else _joined(call.parts, rows.size)

    def _follow(self, stretch: Stretch, values: list[Any], levels: dict[int, Rows], call: Call) -> None:
        """Append to the parts of a call which programs come from here to a return, and what they return.

        `levels` holds the programs that came to each parting, by their number; the last are those that are here. They
        become fewer each time, so the length of a value tells which programs it is of.
        """
        rows = next(reversed(levels.values()))
        while True:
            if not stretch.is_complete():
                has_written = len(_written) > call.begun
                _undo(call.begun)
                _met.here = call.programs[rows[:1]]
                self._record([_first(_taken(value, rows, levels)) for value in values[: self.start.first]])
                _undo(call.begun)
                if has_written:
                    raise _BegunAnewError
            _met.here = call.programs[rows]
            for at in stretch.needed:
                values[at] = _taken(values[at], rows, levels)
            for function, pick in stretch.steps:
                values.append(function(*pick(values)))
            if stretch.asked is None:
                call.parts.append((rows, [values[at] for at in stretch.returned or ()]))
                return
            answers = stretch.read(values[stretch.asked].data[:, 0])
            if (answers != answers[0]).any():
                break
            stretch = stretch.branch(answers[0], len(values))
        for answer in np.unique(answers):
            some = rows[answers == answer]
            self._follow(stretch.branch(answer, len(values)), values.copy(), {**levels, some.size: some}, call)

    def _record(self, inputs: Sequence[TensorHandle]) -> None:
        """Run the function in the interpreter for one program, which adds what it does to the tree."""
        handles = iter(inputs)
        args = [_filled(arg, handles) for arg in self.args]
        kwargs = {name: _filled(arg, handles) for name, arg in self.kwargs.items()}
        recorder = Recorder(self.start, inputs, program_ids=list(handles))
        _recorders.append(recorder)
        try:
            self.result = self.run(*args, **kwargs)
        finally:
            _recorders.pop()
        recorder.finish([tensor.handle for tensor in _tensors(self.result)])


class Recorder:
    """One run of a function down its tree: which value each handle is, and what the tree does not have yet."""

    def __init__(self, start: Stretch, inputs: Sequence[TensorHandle], *, program_ids: list[TensorHandle]) -> None:
        self.path = [start]
        self.values: list[Any] = list(inputs)
        self.places = {id(handle): at for at, handle in enumerate(inputs)}
        self.constants: dict[int, Any] = {}
        self.program_ids = program_ids

    def is_constant(self, value: Any) -> bool:
        """Whether a value is the same for all programs."""
        return not isinstance(value, TensorHandle) or id(value) in self.constants

    def add(self, function: Callable[..., Any], args: Sequence[Any], result: Any) -> None:
        """A step of the stretch, which gave this program `result`."""
        places = [self._place(arg) for arg in args]
        if not self.path[-1].is_complete():
            self._need(places)
            self.path[-1].steps.append((function, _picker(places)))
        self.places[id(result)] = len(self.values)
        self.values.append(result)

    def ask(self, handle: TensorHandle, read: Reader) -> int:
        """This program's answer, which ends the stretch and leads to the next one."""
        answer = int(read(handle.data)[0])
        if not self.is_constant(handle):
            stretch = self.path[-1]
            stretch.asked, stretch.read = self._place(handle), read
            self._need([stretch.asked])
            self.path.append(stretch.branch(answer, len(self.values)))
        return answer

    def finish(self, handles: Sequence[TensorHandle]) -> None:
        """The end of the function, which returns these handles."""
        places = [self._place(handle) for handle in handles]
        self._need(places)
        self.path[-1].returned = places

    def _place(self, value: Any) -> int:
        """Where a value lies; a constant is put there when it is first used."""
        if id(value) not in self.places:
            assert self.is_constant(value), "a value that comes from no operation"
            wide = _wide(value) if isinstance(value, TensorHandle) else value
            self.add(lambda: wide, (), value)
        return self.places[id(value)]

    def _need(self, places: Sequence[int]) -> None:
        for stretch in self.path:
            stretch.needed.update(at for at in places if at < stretch.first)


_functions: dict[Any, Function] = {}
_recorders: list[Recorder | None] = []
"""The recorders of the functions that run now, one inside the other; None while operations run for all programs."""


def _unrecorded(function: Callable[..., Any], *args: Any) -> Any:
    _recorders.append(None)
    try:
        return function(*args)
    finally:
        _recorders.pop()


def _picker(places: Sequence[int]) -> Picker:
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1)) if places else lambda values: ()


# --- what is written, and undone --------------------------------------------------------------------------------------

Written = tuple[NDArray, NDArray, NDArray]
_written: list[Written] = []
"""Of each write of the launch that runs: where, what stood there, and which of it was written."""


class _BegunAnewError(Exception):
    """All that a function wrote was undone."""


def _writes(ptrs: TensorHandle, mask: TensorHandle | None) -> None:
    """Keeps what stands where something is about to be written."""
    there = np.ones(ptrs.data.shape, bool) if mask is None else mask.data
    kind = interpreter._get_np_dtype(ptrs.get_element_ty())
    _written.append((ptrs.data, _standing(ptrs.data, kind, there), there))


def _standing(ptrs: NDArray, kind: Any, there: NDArray) -> NDArray:
    """What stands at addresses, any shape; 0 where they are not `there`."""
    return interpreter._interpreter.load(ptrs, there, np.zeros(ptrs.shape, kind), kind)


def _undo(begun: int) -> None:
    """Takes back all writes but so many."""
    while len(_written) > begun:
        interpreter._interpreter.store(*_written.pop())


# --- where programs meet ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Meetings:
    """The atomic operations of a launch that acquire and release, of which each program comes to one.

    `here` are the numbers of the programs that run now, one where it is recorded. `found` has of each what its
    operation gave, [1], and what stood by then where anything was written, as `_written` has it.
    """

    here: Rows = field(default_factory=lambda: np.arange(0))
    found: dict[int, tuple[NDArray, list[Written]]] = field(default_factory=dict)

    def keep(self, returned: NDArray) -> None:
        """Keeps what the operation gave the programs that are here, [programs, 1], and what they find behind it."""
        stands = [(ptrs, _standing(ptrs, old.dtype, there), there) for ptrs, old, there in _written]
        for program, value in zip(self.here.tolist(), returned, strict=True):
            assert program not in self.found or (self.found[program][0] == value).all(), "a program comes to two"
            self.found[program] = value, stands

    def repeat(self) -> NDArray | None:
        """What the operation gave the program that is here, [1], with what stood by then; None if it never came."""
        if self.here[0] not in self.found:
            return None
        value, stands = self.found[self.here[0]]
        for ptrs, new, there in stands:
            _written.append((ptrs, _standing(ptrs, new.dtype, there), there))
            interpreter._interpreter.store(ptrs, new, there)
        return value


_met = Meetings()


# --- handles of one program and of all of them ------------------------------------------------------------------------


def _wide(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data[None], handle.dtype)


def _first(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data[0], handle.dtype)


def _taken(value: Any, rows: Rows, levels: dict[int, Rows]) -> Any:
    """The part of a value that belongs to the programs `rows`."""
    if isinstance(value, list):
        return [_taken(part, rows, levels) for part in value]
    if not isinstance(value, TensorHandle) or len(value.data) in (1, rows.size):
        return value
    return TensorHandle(value.data[np.searchsorted(levels[len(value.data)], rows)], value.dtype)


def _joined(parts: Sequence[tuple[Rows, list[TensorHandle]]], programs: int) -> list[TensorHandle]:
    """The handles of all programs, from those of programs that went different ways."""
    whole = []
    for like in zip(*(handles for _, handles in parts), strict=True):
        assert len({handle.data.dtype for handle in like}) == 1, "branches return different types"
        data = np.empty((programs, *like[0].data.shape[1:]), like[0].data.dtype)
        for (rows, _), handle in zip(parts, like, strict=True):
            data[rows] = handle.data
        whole.append(TensorHandle(data, like[0].dtype))
    return whole


def _tensors(values: Any) -> Iterator[tl.tensor]:
    """The tensors in nested tuples."""
    if isinstance(values, tl.tensor):
        yield values
    elif isinstance(values, tuple):
        for value in values:
            yield from _tensors(value)


def _filled(values: Any, handles: Iterator[TensorHandle]) -> Any:
    """Nested tuples with other handles in their tensors."""
    if isinstance(values, tl.tensor):
        return tl.tensor(next(handles), values.type)
    return tuple(_filled(value, handles) for value in values) if isinstance(values, tuple) else values


# --- the builder ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counted:
    """What launches did so far: how many there were, the bytes they read, the numbers that atomic operations changed,
    and the most turns of one loop over tiles."""

    launches: int = 0
    bytes_read: int = 0
    additions: int = 0
    longest_loop: int = 0


counted = Counted()


class WideBuilder(InterpreterBuilder):
    """The interpreter's operations on arrays [programs, *shape]; these have to know of the programs, others do not."""

    def create_splat(self, ret_ty: Any, arg: TensorHandle) -> TensorHandle:
        scalars = arg.data.reshape(-1, *[1] * len(ret_ty.shape))
        return TensorHandle(np.broadcast_to(scalars, (len(arg.data), *ret_ty.shape)), arg.dtype.scalar)

    def create_expand_dims(self, arg: TensorHandle, axis: int) -> TensorHandle:
        return TensorHandle(np.expand_dims(arg.data, axis + 1), arg.dtype.scalar)

    def create_reshape(self, arg: TensorHandle, shape: Sequence[int], allow_reorder: bool) -> TensorHandle:
        return TensorHandle(arg.data.reshape(len(arg.data), *shape), arg.dtype.scalar)

    def create_broadcast(self, arg: TensorHandle, shape: Sequence[int]) -> TensorHandle:
        return TensorHandle(np.broadcast_to(arg.data, (len(arg.data), *shape)), arg.dtype.scalar)

    def create_gather(self, src: TensorHandle, indices: TensorHandle, axis: int) -> TensorHandle:
        programs = max(len(src.data), len(indices.data))
        wide = (np.broadcast_to(handle.data, (programs, *handle.data.shape[1:])) for handle in (src, indices))
        return TensorHandle(np.take_along_axis(*wide, axis=axis + 1), src.dtype.scalar)

    def create_masked_load(self, ptrs: TensorHandle, mask: Any, other: Any, *policy: Any) -> TensorHandle:
        there = _spread(mask, ptrs)
        if not any(_recorders):
            number = ptrs.data.size if there is None else int(there.data.sum())
            counted.bytes_read += number * ptrs.get_element_ty().primitive_bitwidth // 8
        return super().create_masked_load(ptrs, there, _spread(other, ptrs), *policy)

    def create_masked_store(self, ptrs: TensorHandle, value: Any, mask: Any, *policy: Any) -> None:
        there = _spread(mask, ptrs)
        _writes(ptrs, there)
        InterpreterBuilder.create_masked_store(self, ptrs, _spread(value, ptrs), there, *policy)

    def create_histogram(self, data: TensorHandle, bins: int, mask: Any) -> TensorHandle:
        assert mask is None, "no kernel has one"
        programs, _ = data.data.shape
        valid = (data.data >= 0) & (data.data < bins)
        flat = (data.data + np.arange(programs)[:, None] * bins)[valid]
        return TensorHandle(
            np.bincount(flat, minlength=programs * bins).reshape(programs, bins).astype(np.int32), tl.int32
        )

    def create_atomic_rmw(
        self, op: Any, ptr: TensorHandle, value: Any, mask: Any, order: Any, scope: Any
    ) -> TensorHandle:
        given, there = _spread(value, ptr), _spread(mask, ptr)
        meets = order == ir.MEM_SEMANTIC.ACQUIRE_RELEASE
        is_own = scope == ir.MEM_SYNC_SCOPE.CTA
        if any(_recorders) and not is_own:  # a function that is recorded runs again, for all programs
            before = InterpreterBuilder.create_masked_load(self, ptr, there, given, None, False)
            again = _met.repeat() if meets else None
            return before if again is None else TensorHandle(again.reshape(ptr.data.shape), before.dtype)
        _writes(ptr, there)
        if not any(_recorders):
            counted.additions += ptr.data.size if there is None else int(np.count_nonzero(there.data))
        before = InterpreterBuilder.create_atomic_rmw(self, op, ptr, given, there, order, scope)
        if meets:
            _met.keep(before.data)
        return before


def _spread(handle: TensorHandle | None, like: TensorHandle) -> TensorHandle | None:
    if handle is None or handle.data.shape == like.data.shape:
        return handle
    return TensorHandle(np.broadcast_to(handle.data, like.data.shape), handle.dtype)


def _recorded_method(name: str, method: Callable[..., Any], wide: WideBuilder) -> Callable[..., Any]:
    """A method of the builder that also puts itself into the tree, unless it only makes a constant."""

    def recorded(builder: Any, *args: Any) -> Any:
        recorder = _recorders[-1] if _recorders else None
        if recorder is None:
            return method(builder, *args)
        if name == "create_get_program_id":
            return recorder.program_ids[args[0]]
        result = _unrecorded(method, builder, *args)
        if all(recorder.is_constant(arg) for arg in args):
            recorder.constants[id(result)] = result
        else:
            recorder.add(getattr(wide, name), args, result)
        return result

    return recorded


def _recorded_apply(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a reduction or a scan of a block, which for all programs runs along an axis one further on."""

    def recorded(self: Any, given: Any) -> Any:
        result = apply(self, given)
        if isinstance(given, tuple):
            return result
        wide, axes = copy(self), len(given.shape)
        wide.axis, wide.keep_dims, wide.to_tensor = 1 + self.axis, axes == 1, _untyped

        def function(handle: TensorHandle) -> TensorHandle:
            out = wide.apply_impl((_Untyped(handle, given.dtype),))
            return (out[0] if isinstance(out, list) else out).handle

        recorder = _recorders[-1]
        assert recorder is not None
        recorder.add(function, [given.handle], result.handle)
        return result

    return recorded


@dataclass(slots=True)
class _Untyped:
    """A tensor of a shape that no type of Triton has."""

    handle: TensorHandle
    dtype: Any


def _untyped(data: NDArray, dtype: Any) -> _Untyped:
    return _Untyped(TensorHandle(data.astype(interpreter._get_np_dtype(dtype)), dtype.scalar), dtype)


# --- what takes the place of Triton's own -----------------------------------------------------------------------------


def install() -> None:
    """Have the kernels of this process, which runs under TRITON_INTERPRET=1, run for all their programs at once."""
    # The checks for overflow would be computed, and then looked at only when debugging.
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    wide = WideBuilder()
    names = [name for name in dir(InterpreterBuilder) if name.startswith(("create_", "get_"))]
    methods = {name: _recorded_method(name, getattr(InterpreterBuilder, name), wide) for name in names}
    for name in ("create_atomic_rmw", "create_masked_store"):
        methods[name] = _recorded_method(name, getattr(WideBuilder, name), wide)
    builder: Any = interpreter.interpreter_builder
    builder.__class__ = type("RecordedBuilder", (InterpreterBuilder,), methods)
    builder.options = options
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        kind.apply = _recorded_apply(kind.apply)
    interpreted: Any = interpreter.InterpretedFunction
    interpreted.run, interpreted.__call__ = _launch, _device_call


def _launch(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
    """Run all programs of a kernel."""
    counted.launches += 1
    run = _patched(kernel)
    known = {name: value for name, value in options.items() if name in kernel.arg_names}
    bound = inspect.signature(run).bind(*args, **known).arguments
    constexprs = interpreter.GridExecutor(run, kernel.arg_names, grid).constexprs
    named = {name: arg if name in constexprs else interpreter._implicit_cvt(arg) for name, arg in bound.items()}
    inputs = [_wide(tensor.handle) for tensor in _tensors((*named.values(),))]
    inputs += [TensorHandle(axis, tl.int32) for axis in np.indices((*grid, 1, 1)[:3], np.int32).reshape(3, -1, 1)]
    _met.here, _met.found = np.arange(len(inputs[-1].data)), {}
    _unrecorded(Function.of(run, (), named, inputs=len(inputs)), *inputs)
    _written.clear()


def _device_call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """What a device function returns to another one, which the interpreter runs for one program."""
    recorder = _recorders[-1]
    assert recorder is not None
    given = [tensor.handle for tensor in _tensors((*args, *kwargs.values()))]
    function = Function.of(_patched(kernel), args, kwargs, inputs=len(given))
    out = _unrecorded(function, *map(_wide, given))
    recorder.add(function, given, out)
    handles = [_first(handle) for handle in out]
    for at, handle in enumerate(handles):
        recorder.add(itemgetter(at), [out], handle)
    return _filled(function.result, iter(handles))


_patched_modules: set[int] = set()


def _patched(kernel: Any) -> Callable[..., Any]:
    """A function as the interpreter runs it; its module's language is patched once instead of for each call."""
    run = kernel.rewrite()
    if id(run.__globals__) not in _patched_modules:
        _patched_modules.add(id(run.__globals__))
        interpreter._patch_lang(run)
        run.__globals__["range"] = _range
        tensor: Any = tl.tensor
        tensor.__index__ = _answer
        # A block is asked only whether it is there.
        tensor.__bool__ = lambda self: self.handle.data.size > 1 or bool(_answer(self, lambda data: data != 0))
    return run


def _answer(tensor: tl.tensor, read: Reader = np.asarray) -> int:
    recorder = _recorders[-1]
    assert recorder is not None
    return recorder.ask(tensor.handle, read)


def _range(start: Any, stop: Any = None, step: int = 1) -> range:
    """The range of Python; of tiles up to a tensor, it asks for their number, not where the last one ends."""
    if not isinstance(stop, tl.tensor):
        return range(start) if stop is None else range(start, stop, step)
    return range(start, start + step * _answer(stop, lambda end: _turns(np.maximum(-((start - end) // step), 0))), step)


def _turns(numbers: NDArray) -> NDArray:
    counted.longest_loop = max(counted.longest_loop, int(numbers.max()))
    return numbers
