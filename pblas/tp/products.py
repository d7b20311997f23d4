"""The product of a layer or of a gradient: a planned product of this rank's arrays, cached for the next such call."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from pblas import errors
from pblas.backends.dtypes import FLOAT8, RESULTS, Array, Dtype, ProductDtypes, accumulator_dtype
from pblas.backends.interop import Target, current_stream, empty, has_memory, is_tensor, is_view, library_of, new_target
from pblas.backends.local_step import AgreedError, LocalStep
from pblas.backends.push_engine import is_array
from pblas.backends.settings import DRY_RUN
from pblas.backends.shared_workspace import WorkspaceSlot
from pblas.collectives.api import Sum, gather, refuse_stream
from pblas.collectives.arguments import array_remedy, backends_array
from pblas.collectives.collective_plan import APART_NBYTES, choose
from pblas.context import Context
from pblas.core.checks import check_written, shares_memory
from pblas.layouts.checks import checked_int
from pblas.matmul.api import plan_matmul
from pblas.matmul.arguments import checked_wire
from pblas.matmul.epilogue_arguments import CheckedOperands, Scales
from pblas.matmul.product import Execution
from pblas.matmul.push.gathering import Gathering
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.arrays import compare_array
from pblas.runtime.kept_plans import Kept
from pblas.runtime.runtime import Runtime, checked_dtype, checked_flag, fail_without_context, name_of, spelled
from pblas.tp.partitioning import (
    ALONE,
    AXES,
    PRODUCTS,
    REDUCE,
    WORDS,
    Layer,
    Matrix,
    Placed,
    Shape,
    argument_name,
    checked_sizes,
    communicated,
    text,
)
from pblas.tp.repeats import Likes, Repeats, Steps, add_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from numpy.typing import DTypeLike

    from pblas.epilogues import Epilogue
    from pblas.layouts.descriptor import MatrixDescriptor

_MAX_TEXTS = 64
_GRAPHS_NBYTES = 15 << 17
"""Bytes that the graphs of a plan on GPUs count, so that a context keeps 64 such plans at most. All plans of a context
share one workspace, which counts nothing."""


class Options(NamedTuple):
    """Options that all functions of `pblas.tp` share; see `allgather_linear`."""

    # lengths, over all ranks, of the axes that are cut; None if all ranks have equal lengths (global)
    lengths: Mapping[str, int | None]
    tf32: bool
    autotune: bool
    wire_dtype: DTypeLike | None
    ctx: Context | None
    stream: Any
    out_dtype: DTypeLike | None = None
    fast_accumulate: bool = False
    # scale_a, scale_b, scale_d and amax, of layers with x and weight of 8 bits
    scales: tuple[Any, Any, Any, Any] = (None, None, None, None)

    @property
    def values(self) -> tuple[object, ...]:
        """All of them but the context and the stream."""
        return *self.lengths.values(), *self[1:4], self.out_dtype, self.fast_accumulate, *self.scales


class ProductOptions(NamedTuple):
    """Checked options of a product, as `plan_matmul` takes them (global)."""

    tf32: bool
    autotune: bool
    fast_accumulate: bool
    wire_dtype: str


class Product(NamedTuple):
    """One product of a call: a matrix of the layer, or the gradient by it."""

    target: Matrix  # the matrix, a key of `PRODUCTS` (global)
    a: Array  # this rank's shard of the left operand (local)
    b: Array  # this rank's shard of the right operand (local)
    d: Array  # receives this rank's shard of the product (local)
    epilogue: Epilogue | None = None  # epilogue with checked operands; None for none (local)
    beta: float = 0.0  # factor of the old contents of d, which are added (global)


class _Form(Kept):
    """All that a call derives from shapes, dtypes and options alone, kept for like calls."""

    def __init__(
        self,
        caller: Caller,
        operands: Mapping[Matrix, Array],
        options: Options,
        given: Dtype | None,
        *,
        stored: bool,
    ) -> None:
        (first, x), *others = operands.items()
        for matrix, other in others:
            if other.dtype != x.dtype and not (x.dtype in FLOAT8 and other.dtype in FLOAT8):
                raise errors.DTypeError(
                    f"{argument_name(matrix)} is {other.dtype.name}, {argument_name(first)} is {x.dtype.name}; "
                    f"use one dtype"
                )
        opname, nprocs, rank = caller.opname, caller.runtime.nprocs, caller.runtime.rank
        known = tuple(
            (axis, checked_int(opname, WORDS[axis], n, 0)) for axis, n in options.lengths.items() if n is not None
        )
        shapes = tuple((matrix, array.shape) for matrix, array in operands.items())
        self.dtype: Dtype = _result_dtype(opname, x, others[0][1], options, given) if stored else x.dtype
        """The dtype of results (global)."""
        self.has_8_bits: bool = x.dtype in FLOAT8  # whether elements of the operands have 8 bits (global)
        self.sizes: Mapping[str, int] = checked_sizes(caller.layer, shapes, caller.batch, known, rank, nprocs)
        """Numbers of tokens and features of all ranks (global)."""
        self.placed: Placed = caller.layer.placed(self.sizes, caller.batch, rank, nprocs)
        """Descriptors of the layer's matrices (global), and shapes of this rank's shards (local)."""
        self.options: ProductOptions = ProductOptions(
            tf32=checked_flag(opname, "tf32", options.tf32),
            autotune=checked_flag(opname, "autotune", options.autotune),
            fast_accumulate=checked_flag(opname, "fast_accumulate", options.fast_accumulate),
            wire_dtype=name_of(
                accumulator_dtype(self.dtype)
                if caller.runtime.reproducible and options.wire_dtype is None
                else checked_wire(opname, options.wire_dtype, self.dtype)
            ),
        )
        self.call_args: dict[str, Any] = {WORDS[axis]: n for axis, n in self.sizes.items()}
        """Arguments that must be equal on all ranks, by the names that callers know (global)."""
        self.call_args |= {"batch shape": caller.batch, "dtype": name_of(self.dtype)}
        self.call_args["dtypes"] = [name_of(array.dtype) for array in operands.values()]
        self.texts: dict[tuple[object, ...], str] = {}
        """The text of these arguments for an agreement, by the call's other ones (global)."""


class Caller:
    """One call of a function of `pblas.tp`: its ranks, its stream, the checks of its arrays, and its products.

    A with block around the call: see `Runtime.call`. New arrays come from the library of the first operand, `like`;
    its current stream is the default.
    """

    def __init__(self, layer: Layer, opname: str, ctx: Context | None, like: object, stream: object) -> None:
        given: object = default_context() if ctx is None else ctx
        if not isinstance(given, Context):
            problem = f"{opname}: ctx must be None or a pblas.Context, got {type(given).__name__}"
            fail_without_context(opname, errors.ArgumentError(problem))
        self.ctx: Context = given
        runtime = self.ctx.runtime
        self.runtime: Runtime = runtime
        self.layer: Layer = layer
        self.opname: str = opname
        self._like = like
        self._stream = stream
        self.call_args: dict[str, Any] = {}
        """Arguments that must be equal on all ranks, besides sizes, options and numbers (global)."""
        self.numbers: dict[str, Any] = {}
        """Scales and operands of the epilogue, equal on all ranks: numbers, and dtypes of arrays (global)."""
        self.gathered: dict[Matrix, Array] = {}  # matrices that have been gathered on every rank (global)
        self._coming: dict[Matrix, Gathering] = {}  # matrices that are being gathered (global)
        self.batch: Shape = ()
        """Lengths of the axes between tokens and features, from the first array that has tokens (global)."""
        self.scales: Scales | None = None  # scales of operands of 8 bits; set by `operands` (global)
        self.form: _Form  # sizes, descriptors and shards of the layer's matrices, and options; set by `operands`
        self._key: object = None  # of the form
        self._is_agreed, self._batch_of = False, ""
        self._new: list[tuple[str, Target]] = []  # results and temporary arrays, by their names (local)
        self._unused: list[tuple[str, Any]] = []  # those of them that are made before they are asked for (local)
        self._like_key: tuple[object, ...] | None = None  # of calls with like arrays; None if none is repeated (local)
        self._addresses: list[int] = []  # of the arguments (local)
        self._steps: list[Callable[[Any], object]] = []
        self._uses: list[Kept] = []  # plans and forms that it uses (global)

        self._call = runtime.call(opname)

    def __enter__(self) -> Self:
        self._call.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if caught is None and self._key is not None:
            self._keep(self._key, self.form)
            if self._like_key is not None:
                self._remember(self._like_key)
        self._call.__exit__(kind, caught, traceback)
        self._like = self._stream = None  # the steps refer to this object, which refers to no array any more
        self._new, self._unused, self._steps, self._uses = [], [], [], []
        self._forget()

    @property
    def stream(self) -> Any:
        """The stream on which to run; None for the backend's own choice (local)."""
        return current_stream(self._like) if self._stream is None else self._stream

    def repeat(self, *values: object) -> dict[str, Any] | None:
        """**Collective.** Repeat an earlier call with these arrays and options: its results by name; None if not.

        The arrays that a call makes are arguments of its steps, too. So they are made first, and serve a new call.
        """
        runtime, key, addresses = self.runtime, [self.opname, self.layer], self._addresses
        backend = runtime.backend
        if runtime.debug or backend.dry is not None or (self._stream is not None and not backend.gpus):
            return None
        if not (type(self._like) is np.ndarray or is_tensor(self._like) or backend.is_here(self._like)):
            return None  # results are converted
        if not add_key(values, key, addresses):
            return None
        self._like_key = tuple(key)
        if runtime.repeats is None:
            runtime.repeats = Repeats()
            runtime.matrices.add(runtime.repeats)
        likes = runtime.repeats.get(self._like_key)
        if likes is None:
            return None
        with self.checking():
            names, new, added = self._made(likes.new)
        steps = likes.get((*addresses, *added))
        if steps is None or not steps.is_current:
            self._unused = list(zip(names, new, strict=True))
            return None
        stream = self.stream
        for step in steps.steps:
            step(stream)
        steps.end()
        return dict(zip(names, new, strict=True))

    def do(self, step: Callable[[Any], object]) -> None:
        """Run a step on the call's stream: everything that is done after the checks, and again in each repeat."""
        self._steps.append(step)
        step(self.stream)

    def compare(self, name: str, x: Array) -> None:
        """See `compare_array` (local)."""
        x = self.borrowed(x)
        self.do(lambda _: compare_array(name, x, self.runtime))

    def borrowed(self, x: Array) -> Array:
        """The array as steps refer to it: those that may be repeated keep no memory of the caller's alive (local)."""
        return x if self._like_key is None else self.runtime.backend.borrowed(x)

    def _keep(self, key: object, kept: Kept) -> None:
        """See `KeptPlans.keep` (global)."""
        self.do(lambda _: self.runtime.kept.keep(key, kept))  # in the same order on ranks that repeat their call
        self._uses.append(kept)

    def _remember(self, key: tuple[object, ...]) -> None:
        """Remember this call for repeats (local)."""
        likes = self.runtime.repeats.get(key)
        if likes is None:
            likes = Likes([(name, target.array.shape, target.array.dtype) for name, target in self._new])
            self.runtime.repeats.add(key, likes)
        address = self.runtime.backend.address
        steps = Steps(self._steps, self._uses, self._forget)
        likes.add((*self._addresses, *(address(target.array) for _, target in self._new)), steps)

    def _forget(self) -> None:
        """Drop the arrays that steps have made (local)."""
        self.gathered.clear()
        self._coming.clear()

    def checking(self) -> LocalStep:
        """A with block in which this rank checks its arguments; an error in it is raised on all ranks (local)."""
        return LocalStep(self._refuse, self.opname)

    def named(self, error: AgreedError) -> AgreedError:
        """The same error, with the function's name before its text."""
        text = str(error)
        return error if text.startswith(f"{self.opname}: ") else type(error)(f"{self.opname}: {text}")

    def _refuse(self, opname: str, error: AgreedError) -> None:
        refuse(self.runtime, opname, self.named(error))

    def array(self, name: str, x: object, *, tokens: bool = True, stored: bool = False) -> Array:
        """A caller's array as an array of the backend in the same memory, from which `rows` makes a matrix (local).

        With `tokens`, the first axis is that of tokens. Batch axes may follow it, with the same lengths in all such
        arrays of a call. With `stored`, elements may have 8 bits.
        """
        backend = self.runtime.backend
        if type(x) is np.ndarray and not backend.gpus:  # the most frequent case
            array: Array = x
        elif isinstance(x, DistMatrix):
            raise errors.ArgumentError(f"{name} must be an array, got a DistMatrix; its .local is one")
        else:
            array = backends_array(backend, name, x)
        if x is None or array.ndim < 2 or (array.ndim > 2 and not tokens):
            got, remedy = f"shape {tuple(array.shape)}", "use reshape"
            if array.ndim == 0 and not has_memory(x):  # NumPy makes 0-dimensional arrays of other objects
                got, remedy = type(x).__name__, array_remedy(name, x)
            raise errors.ArgumentError(f"{name} must have 2 dimensions{' or more' * tokens}, got {got}; {remedy}")
        if not backend.is_here(array):
            raise errors.ArgumentError(
                f"{name} is in host memory, backend={backend.name!r} multiplies on GPUs; copy it there"
            )
        checked_dtype(name, array.dtype, stored=stored)
        if not array.flags.c_contiguous and not _has_uniform_rows(array):
            raise errors.ArgumentError(
                f"{name} must be stored by rows (C order), got shape {tuple(array.shape)} with strides "
                f"{array.strides}; pass a contiguous copy"
            )
        array = self.borrowed(array)
        if not tokens:
            return array
        batch = tuple(array.shape[1:-1])
        if not self._batch_of:
            self.batch, self._batch_of = batch, name
        if batch != self.batch:
            raise errors.ArgumentError(
                f"{name} is {text(array.shape)}: between its first axis and its last it must have the axes "
                f"{self.batch}, as {self._batch_of} has"
            )
        return array

    def operands(
        self, arrays: Mapping[Matrix, Any], options: Options, *, out: object = None, stored: bool = False
    ) -> dict[Matrix, Array]:
        """This rank's shards of the layer's matrices, as 2-D arrays; sets `form` and `scales` (local)."""
        if not self.runtime.backend.gpus:
            refuse_stream(self.opname, self._stream)
        operands = {
            matrix: self.array(argument_name(matrix), x, tokens=matrix != "w", stored=stored)
            for matrix, x in arrays.items()
        }
        given = None if out is None or not stored else self.runtime.backend.as_array(out).dtype
        plain = (*options[1:4], *options[6:8], *options.lengths.values())
        shapes = tuple((matrix, array.shape, array.dtype) for matrix, array in operands.items())
        self._key = (self.opname, self.layer, shapes, self.batch, given, plain, tuple(map(type, plain)))
        try:
            form = self.runtime.kept.get(self._key, _Form)
        except TypeError:  # an option that is no key, which is wrong
            form = None
        self.form = form or _Form(self, operands, options, given, stored=stored)
        self.scales = Scales.checked(self.opname, self.runtime, shapes[0][2], *options.scales)
        if self.scales is not None:
            read = (self.scales.a, self.scales.b, self.scales.d)
            if any(has_memory(x) and not is_array(z) for x, z in zip(options.scales[:3], read, strict=True)):
                self._like_key = None  # a number was read from memory of the host, which may change
            self.scales = self.scales.of(self.borrowed)
            self.numbers |= self.scales.arguments()
        return {matrix: rows(array) for matrix, array in operands.items()}

    def check_apart(self, name: str, result: Array | None, **others: Array | None) -> None:
        """Raise ArgumentError if the caller's array for a result shares memory with another array (local)."""
        if result is None:
            return
        memory_of = self.runtime.backend.memory_of
        result_memory = memory_of(result)
        for other, array in others.items():
            if array is not None and shares_memory(result_memory, memory_of(array)):
                raise errors.ArgumentError(f"{name} overlaps {other}; give it memory of its own")

    def target(self, name: str, shape: Shape, dtype: Any, out: object = None, *, tokens: bool = True) -> Target:
        """The memory of a result: the caller's array `out`, or a new array if that is None (local)."""
        backend = self.runtime.backend
        if out is None and self._like_key is not None:
            theirs = self._unused.pop(0)[1] if self._unused else self._made([(name, shape, dtype)])[1][0]
            target = Target(theirs, self.borrowed(backend.as_array(theirs)), self._like)
            self._new.append((name, target))
            return target
        if out is None:
            if not is_tensor(self._like):
                library_of(self._like)  # an error if it makes no arrays
            target = new_target(shape, self._like, backend, lambda: backend.new(shape, dtype), dtype=dtype)
            self._new.append((name, target))
            return target
        array = self.array(name, out, tokens=tokens)
        if not is_view(array, out, backend):
            raise errors.ArgumentError(
                f"{name} must be an array that can be written in place, got {type(out).__name__}"
            )
        if (array.shape, array.dtype) != (shape, dtype):
            got, expected = (f"{text(n)} {kind.name}" for n, kind in ((array.shape, array.dtype), (shape, dtype)))
            raise errors.ArgumentError(f"{name} is {got}, the result {expected}; make them agree")
        check_written(name, array)
        return Target(out, array, self._like)

    def _made(self, new: list[tuple[str, Shape, Any]]) -> tuple[list[str], list[Any], list[int]]:
        """Names, new arrays of the caller's library, and their addresses (local)."""
        like, backend, is_torchs = self._like, self.runtime.backend, is_tensor(self._like)
        arrays: list[Any] = [empty(n, like, kind) if is_torchs else backend.new(n, kind) for _, n, kind in new]
        places = [x.data_ptr() if is_torchs else backend.address(x) for x in arrays]
        return [name for name, *_ in new], arrays, places

    def is_apart(self, travels: Matrix | None, target: Matrix) -> bool:
        """Whether to run a GEMM on each rank and a collective before or after it, instead of a distributed plan.

        That is faster if `travels`, the communicated matrix, is small or None. On GPUs only `REDUCE` does it: the
        reduction kernel applies the epilogue, and a caller's graph can record it, while a `GemmAllReduce` ends with a
        barrier of all GPUs. On CPUs the ranks then wait for each other only once, and BLAS runs one product where a
        plan runs one for each rank. Partial products of 16-bit matrices need a plan, because the collective would add
        rounded ones. A context with `reproducible` has plans only.
        """
        backend = self.runtime.backend
        if backend.gpus != backend.push or self.runtime.reproducible:
            return False
        if travels is None:
            return not backend.gpus
        desc, dtype = self.form.placed.descs[travels], self.form.dtype
        nbytes = desc.m * desc.n * dtype.itemsize
        if not backend.gpus:
            if travels != target and self.form.has_8_bits:  # collectives of arrays take no such elements
                return False
            return nbytes <= APART_NBYTES and (travels != target or accumulator_dtype(dtype) == dtype)
        if self.layer is not REDUCE or self.form.sizes["I"] % self.runtime.nprocs or not nbytes:
            return False
        return choose(nbytes, self.runtime.nprocs, "gpus", desc.m, whole=True) == "one_shot"

    def run(self, product: Product) -> None:
        """**Collective.** Compute a product of the call."""
        target, d = product.target, product.d
        left, right, *_ = PRODUCTS[target]
        if self.runtime.backend.push and (left in self._coming or right in self._coming):
            self._run_gathered(product)
            return
        travels = communicated(self.layer, target) if self.runtime.nprocs > 1 else None
        # A collective transfers partial products in the matrices' dtype, and not in wire_dtype.
        rounded = travels == target and self.form.options.wire_dtype != name_of(self.form.dtype)
        if rounded or not self.is_apart(travels, target):
            self._run_planned(self.layer, product)
        elif self.runtime.backend.push:
            with self.checking():
                own = self.target("product", d.shape, d.dtype).array
            self._run_planned(ALONE, product._replace(d=own, epilogue=None))
            epilogue = product.epilogue
            self.do(lambda stream: self.ctx.allreduce(own, d, epilogue=epilogue, stream=stream))
        else:
            self._run_apart(travels, product)

    def gather(self, shards: Mapping[Matrix, Array]) -> None:
        """**Collective.** On GPUs, begin to gather a matrix whose tokens are cut, for all products of even shards.

        The gradient by the weight adds over tokens: with shards that arrive one after the other it needs partial sums
        in 32 bits and one more pass, a third more time than one product (70B, 2 H200).
        """
        runtime, sizes = self.runtime, self.form.sizes
        is_even = not any(sizes[axis] % runtime.nprocs for axis in ("T", self.layer.w))
        if not runtime.backend.push or runtime.nprocs == 1 or runtime.reproducible or not is_even:
            return
        counts = self.form.placed.counts
        for matrix, shard in shards.items():
            if self.layer.cut(matrix) != "T" or not shard.size:
                continue
            key = "gathering", counts, shard.shape[1], shard.dtype
            gathering = runtime.kept.get(key, Gathering)
            if gathering is None:
                runtime.agree(self.opname, f"{self._text()}\ngathered before=False")
                gathering = Gathering(runtime, *key[1:])
            self.do(partial(gathering.begin, shard))
            self._keep(key, gathering)
            self._coming[matrix] = gathering

    def whole(self, matrix: Matrix) -> Array | None:
        """**Collective.** A matrix that is being gathered, once it is there; None if it is not gathered (global)."""
        gathering = self._coming.get(matrix)
        if gathering is None:
            return None
        if matrix not in self.gathered:
            self.do(gathering.end)
            self.gathered[matrix] = gathering.whole
        return gathering.whole

    def _run_gathered(self, product: Product) -> None:
        """**Collective.** `run` on GPUs if an operand is being gathered: of two ranks each begins with its own rows."""
        left, right, *_ = PRODUCTS[product.target]
        coming = self._coming.get(left) if product.target == "x" and self.runtime.nprocs == 2 else None
        if coming is None:
            a, b = self.whole(left), self.whole(right)
            self._run_planned(ALONE, product._replace(a=product.a if a is None else a, b=product.b if b is None else b))
            return
        own, d = coming.own, product.d
        self._run_planned(ALONE, product._replace(d=d[own]))
        self.whole(left)
        others = slice(0, own.start) if own.start else slice(own.stop, len(d))
        self._run_planned(ALONE, product._replace(a=self.gathered[left][others], d=d[others]))

    def _run_apart(self, travels: Matrix | None, product: Product) -> None:
        """**Collective.** `run` on CPUs if `is_apart`; the collective's agreement compares the call's arguments too."""
        target, a, b, d, epilogue, beta = product
        left, right, transa, transb = PRODUCTS[target]
        gathered, counts = self.gathered, self.form.placed.counts
        if travels is None:
            self.agree()
        elif travels != target and travels not in gathered:
            shard, call = a if travels == left else b, (self.runtime, self.opname, self._text())
            self.do(lambda _: gathered.__setitem__(travels, gather(*call, shard, counts)))
        self._is_agreed = True

        def multiply(beta: complex, d: Array, epilogue: Epilogue | None) -> None:
            x, y = gathered.get(left, a), gathered.get(right, b)
            self._multiply(x.T if transa == "T" else x, y.T if transb == "T" else y, beta, d, epilogue)

        if travels == target:
            rows_per_rank = counts if self.layer.cut(target) else None
            left_shape, right_shape = (gathered.get(z, own).shape for z, own in ((left, a), (right, b)))
            shape = left_shape[transa == "T"], right_shape[transb == "N"]
            total = Sum(self.runtime, (self.opname, self._text()), shape, d, epilogue, rows_per_rank)

            def contribute(_: object) -> None:
                with self.checking():
                    own = total.own()
                    multiply(0.0, own, None)
                total.add(own)

            self.do(contribute)
        else:
            self.do(lambda _: multiply(beta, d, epilogue))

    def _multiply(self, a: Array, b: Array, beta: complex, d: Array, epilogue: Epilogue | None) -> None:
        """D := epilogue(a b + beta d), rounded once (local)."""
        arrays, wide = self.runtime.backend.arrays, accumulator_dtype(d.dtype)
        total = d if wide == d.dtype else arrays.like(d, wide)
        if beta != 0 and total is not d:
            arrays.assign(d, total)
        if len(a) == 1 and total is d and self._factor == 1 and beta == 0:
            np.matmul(a, b, total)  # by GEMV; GEMM takes four times as long for one token
        else:
            arrays.gemm(self._factor, a, b, beta, total)
        if epilogue is not None:
            arrays.finish(epilogue, total, epilogue.operands, d)
        elif total is not d:
            arrays.assign(total, d)

    @property
    def _factor(self) -> float:
        """The product of the scales of x and weight, on CPUs (local)."""
        scales = self.scales
        if scales is None:
            return 1.0
        a, b = (float(x[0]) if is_array(x) else float(x) for x in (scales.a, scales.b))
        return a * b

    def _text(self) -> str:
        """The arguments that must be equal on all ranks, for an agreement."""
        texts, key = self.form.texts, tuple(self.call_args.items())
        text = texts.get(key)
        if text is None:
            if len(texts) >= _MAX_TEXTS:
                texts.clear()
            text = texts[key] = spelled(self.form.call_args | self.call_args | self.form.options._asdict())
        return text + spelled(self.numbers) if self.numbers else text

    def agree(self) -> None:
        """**Collective.** Agree on this call once; nothing on GPUs that push data, where calls need no agreement."""
        if not (self._is_agreed or self.runtime.topology.push):
            call = self.opname, self._text()
            self.do(lambda _: self.runtime.agree(*call))
        self._is_agreed = True

    def _run_planned(self, layer: Layer, product: Product) -> None:
        """**Collective.** `run` by a cached plan; a plan for `ALONE` communicates nothing."""
        a, epilogue = product.a, product.epilogue
        form, sizes = self.form, dict(self.form.sizes)
        if layer is ALONE:
            left, right, *_ = PRODUCTS[product.target]
            for matrix, array in ((left, a), (right, product.b)):
                sizes |= zip(AXES[matrix], array.shape, strict=True)
            sizes["T"] //= prod(self.batch)
        axes = (sizes[axis] for axis in "TIO")
        dtypes = a.dtype, product.b.dtype, product.d.dtype
        key: tuple[Any, ...] = (layer.name, product.target, *axes, self.batch, *dtypes, product.beta)
        key += (*form.options, None if self.scales is None else self.scales.kinds)
        if epilogue is not None:
            kinds = ((name, getattr(value, "dtype", "")) for name, value in epilogue.operands.items())
            key += (epilogue.expression, *kinds)

        planned = self.runtime.kept.get(key, _Planned)
        if planned is None:
            # Its error says more than that of `plan_matmul`.
            self.runtime.agree(self.opname, f"{self._text()}\nplanned before=False")
            descs = layer.placed(sizes, self.batch, self.runtime.rank, self.runtime.nprocs).descs
            planned = _Planned(self.runtime, descs, product, form.options, self.scales)
        self.do(planned.bound(product, (self.opname, f"{self._text()}\nplanned before=True"), self.scales))
        self._keep(key, planned)
        self._is_agreed = True


def refuse(runtime: Runtime, opname: str, error: AgreedError) -> None:
    """**Collective.** Raise an error of this rank's in a call, whether it begins with an agreement or not."""
    if runtime.topology.push:
        runtime.backend.agreement.nexecutions += 1
        runtime.reject(error)
    runtime.fail(opname, error)


def rows(x: Array) -> Array:
    """A checked array as a matrix in the same memory: all axes but the last become one (local).

    >>> rows(np.zeros((2, 3, 4))).shape
    (6, 4)
    """
    return x if x.ndim == 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])


def _result_dtype(opname: str, x: Array, w: Array, options: Options, given: Dtype | None) -> Dtype:
    """The dtype of y: that of the caller's array, which is `given`, else out_dtype, else the default for x."""
    asked = None
    if options.out_dtype is not None:
        asked = checked_dtype(opname, options.out_dtype, is_argument=True)
    if asked is not None and given is not None and asked != given:  # to NumPy, None is equal to float64
        raise errors.DTypeError(f"out is {given}, out_dtype= says {options.out_dtype}; leave out_dtype out")
    dtype = RESULTS[x.dtype][0] if asked is None else asked
    if given is not None and (asked is not None or given in RESULTS[x.dtype]):
        dtype = given  # the check of `out` names another dtype
    ProductDtypes(x.dtype, w.dtype, dtype, dtype, dtype).check(opname, "out_dtype")
    return dtype


def _has_uniform_rows(x: Array) -> bool:
    """Whether each row is contiguous, and one stride leads from each row to the next (local)."""
    if not x.size:
        return True
    *outer, (columns, step) = zip(x.shape, x.strides, strict=True)
    outer = [(n, step) for n, step in outer if n > 1]
    return (
        (columns <= 1 or step == x.itemsize)
        and all(step >= x.itemsize for _, step in outer[-1:])
        and all(step == n * inner for (_, step), (n, inner) in pairwise(outer))
    )


class _Planned(Kept):
    """**Collective.** A planned product, and the descriptors that it was planned with."""

    def __init__(
        self,
        runtime: Runtime,
        descs: Mapping[Matrix, MatrixDescriptor],
        product: Product,
        options: ProductOptions,
        scales: Scales | None,
    ) -> None:
        left, right, transa, transb = PRODUCTS[product.target]
        self._runtime, self._adds = runtime, product.beta != 0
        self._descs = [descs[matrix] for matrix in (left, right, product.target)]
        self._workspace_slot = WorkspaceSlot(runtime.workspace_pool)
        a, b, c, d = self._matrices(product)
        with runtime.backend.taking(self._workspace_slot):
            self._product = plan_matmul(
                *(a, b, c),
                transa=transa,
                transb=transb,
                beta=product.beta,
                epilogue=product.epilogue,
                out=d,
                scale_a=None if scales is None else scales.a,
                scale_b=None if scales is None else scales.b,
                tf32=options.tf32,
                autotune=options.autotune,
                fast_accumulate=options.fast_accumulate,
                wire_dtype=options.wire_dtype,
            )
        self._product.forget_operands()
        if runtime.backend.gpus:
            self.kept_nbytes = _GRAPHS_NBYTES

    def _matrices(self, product: Product) -> tuple[DistMatrix, DistMatrix, DistMatrix | None, DistMatrix]:
        arrays = product.a, product.b, product.d
        a, b, d = (DistMatrix(desc, z, self._runtime) for desc, z in zip(self._descs, arrays, strict=True))
        return a, b, d if self._adds else None, d

    def bound(self, product: Product, call: tuple[str, str], scales: Scales | None) -> Callable[[Any], object]:
        """A function of the stream that runs a product like the first one, in the call `call`; see `Execution`."""
        operands = None if product.epilogue is None else CheckedOperands(product.epilogue.operands)
        launch = self._product.bound_launch(Execution(*self._matrices(product), operands, None, call, scales))

        def run(stream: object) -> None:
            with self._runtime.backend.taking(self._workspace_slot):  # the first execution allocates some memory
                launch(stream)

        return run

    def close(self) -> None:
        """Drop the plan's workspace (local)."""
        self._product.close()


_default: list[Context] = []
"""The default context, or nothing before the first call without `ctx=`. MPI's end closes it."""


def default_context() -> Context:
    """The context over COMM_WORLD that calls without `ctx=` use; **collective** in the first call, which makes it.

    It is closed when the program ends, or calls MPI.Finalize.
    """
    recording = DRY_RUN.get()
    if recording is not None:
        recording.defaults = recording.defaults or [Context()]
        context: Context = recording.defaults[0]
        return context
    if not _default or _default[0].runtime.closed:
        first, _default[:] = not _default, [Context()]  # its error says what to do without MPI
        if first:
            _default[0].runtime.backend.peers.before_end(_end)
    return _default[0]


def _end() -> None:
    _default[0].close()
