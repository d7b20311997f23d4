"""Expressions of `pblas.epilogues` on a GPU: printed as CUDA C++, and evaluated by one kernel in one pass.

A tree becomes a struct `Expression`. Its constructor loads the operands; its `apply` computes elements in the precision
of the accumulator. The kernels of collectives include the same struct. It is compiled once for each expression with
the kinds and dtypes of its operands; CuPy keeps the machine code on disk. Numbers and addresses are arguments of the
kernel, so new values need no compilation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.cuda.kernels import EARLY_CAPABILITY, Stream, WordArguments, configured, expanded, give
from pblas.backends.cuda.programs import Program
from pblas.epilogues import RESULT, Name, Node, Number, operand_names, parse, renamed

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, GpuArray

MAX_TERMS = 12  # maximum number of terms of one expression: its operands, and x
TERM_WORDS = 3
ANY_STEP = -1

FOLDER = Path(__file__).parent

_TYPES = {"float32": "float", "float64": "double", "complex64": "complex<float>", "complex128": "complex<double>"}
_OTHER_PRECISION = {"f": "d", "d": "f", "F": "D", "D": "F"}
_THREADS = 256
_CTAS_PER_SM = 1024  # with more packs a thread takes several; with 16, 4 % more time on an H200
_PACKS = 2  # of each array that a thread loads at once, where packs are whole and aligned
_MOST_CTAS = (1 << 31) - 1
_MOST_KNOWN = 1024  # expressions whose kernels are kept
_ROWS_PER_SM = 16  # CTAs that normalise rows, twice as many as fit at once
_PACK_NBYTES = 16
_HEAD_WORDS = 5  # PointwiseArguments before the terms, and the length of a line
_DOUBLES = struct.Struct("=2d")
_WORDS = struct.Struct("=2q")


def type_name(dtype: Dtype) -> str:
    """The name of a dtype in CUDA C++.

    >>> import numpy as np
    >>> type_name(np.dtype("float16")), type_name(np.dtype("complex64"))
    ('float16', 'complex<float>')
    """
    return _TYPES.get(dtype.name, dtype.name)


def printed(tree: Node, dtypes: Sequence[Dtype | None], first: int = 0, steps: Sequence[int] | None = None) -> str:
    """CUDA C++ of an expression: the struct `Expression`, compiled after pointwise.cuh.

    >>> from pblas.epilogues import parse
    >>> print(printed(parse("relu(x) + b"), [None]).splitlines()[-3].strip())
    for (int i = 0; i < LENGTH; i++) x[i] = pointwise::add(pointwise::relu(x[i]), t0);
    """
    loads, advances, names, kinds = [], [], {RESULT: "x[i]"}, {}
    known = (ANY_STEP,) * len(dtypes) if steps is None else steps
    for number, (name, dtype, step) in enumerate(zip(operand_names(tree), dtypes, known, strict=True), first):
        if dtype is None:
            loads.append(f"t{number} = number<A>(terms.term[{number}]);")
            names[name], kinds[number] = f"t{number}", "A"
        else:
            kind = type_name(dtype)
            arguments = f"terms.term[{number}], terms.length, line, position, n"
            loads.append(f"t{number} = fetch<{kind}, LENGTH, {step}>({arguments});")
            advances.append(f"terms.term[{number}].advance(line, position, sizeof({kind}));")
            names[name], kinds[number] = f"As<A>::of(widen(t{number}.x[i]))", f"Pack<{kind}, LENGTH>"
    members = " ".join(f"{kind} t{number};" for number, kind in kinds.items())
    loaded, advanced = ("\n        ".join(lines) for lines in (loads, advances))
    return f"""template <class A, int LENGTH>
struct Expression {{
    {members}
    __device__ __forceinline__ Expression(
        const Terms& terms, integer line, integer position, integer n) {{
        {loaded}
    }}
    __device__ __forceinline__ static Terms from(Terms terms, integer line, integer position) {{
        {advanced}
        return terms;
    }}
    __device__ __forceinline__ void apply(A (&x)[LENGTH]) const {{
#pragma unroll
        for (int i = 0; i < LENGTH; i++) x[i] = {_value(tree, names)};
    }}
}};
"""


def _value(node: Node, names: Mapping[str, str]) -> str:
    if isinstance(node, Number):
        return f"Constant<A>::of({node.value.hex()}, 0)"
    if isinstance(node, Name):
        return names[node.name]
    function, arguments = node.function, node.arguments
    if function == "power" and arguments[1] == Number(2.0):
        function, arguments = "square", arguments[:1]
    return f"pointwise::{function}({', '.join(_value(argument, names) for argument in arguments)})"


def number_term(value: complex) -> tuple[int, int, int]:
    """The three words of a term that is a number."""
    value = complex(value)
    re, im = _WORDS.unpack(_DOUBLES.pack(value.real, value.imag))
    return re, im, 0


def source(
    tree: Node, dtypes: Sequence[Dtype | None], x: Dtype, out: Dtype, compute: Dtype | None = None, *, packs: int = 0
) -> str:
    """CUDA C++ of the kernel that evaluates an expression; with `packs` of arrays whose packs are whole and aligned."""
    accumulator = f"typename Accumulator<{type_name(x)}>::type" if compute is None else type_name(compute)
    types = f"typedef {type_name(x)} X;\ntypedef {type_name(out)} O;\ntypedef {accumulator} A;\n"
    types += f"enum {{ NBYTES = {pack_nbytes(dtypes, x, out, compute)} }};\n#define PACKS {packs}\n"
    steps = [1] * len(dtypes) if packs else None
    return functions(out) + printed(tree, dtypes, 1, steps) + types + expanded(FOLDER / "pointwise.cu")


def pack_nbytes(dtypes: Sequence[Dtype | None], x: Dtype, out: Dtype, compute: Dtype | None) -> int:
    """Bytes of an element that decide how many fit in a pack: of the widest of x, out and, if dtypes are mixed, all.

    >>> import numpy as np
    >>> single, double = np.dtype("float32"), np.dtype("float64")
    >>> pack_nbytes([None, double], single, single, double), pack_nbytes([None], single, single, None)
    (8, 4)
    """
    others = [] if compute is None else [dtype for dtype in dtypes if dtype is not None]
    return max(dtype.itemsize for dtype in (x, out, *others))


def functions(dtype: Dtype) -> str:
    """CUDA C++ of pointwise.cuh, the functions of expressions and the loads of operands, for results of this dtype."""
    return f"#define SHORT_RESULTS {int(dtype.itemsize <= 2)}\n{expanded(FOLDER / 'pointwise.cuh')}"


class _Launch(NamedTuple):
    """A launch of an expression on arrays of known layouts: only addresses and numbers change."""

    tree: Node  # keeps the place of the tree, by which the launch is found again
    key: tuple[Any, ...]  # the arguments of `source`
    words: list[int]  # arguments of the kernel
    arrays: tuple[tuple[str, int, int], ...]  # operands: name, place of the address among the words, bits that are 0
    numbers: tuple[tuple[str, int], ...]  # names of the numbers, and places of their words
    ctas: tuple[int, int]  # if all packs of all arrays are whole and aligned, and otherwise
    is_ragged: bool  # whether some packs are not whole at any addresses
    functions: dict[bool, int]  # the kernels, by whether all packs are whole


EXPRESSIONS = {
    **dict.fromkeys(("x + y", "x - y", "x * y", "x / y", "conj(x) * y"), ("x y",)),
    **dict.fromkeys(("x * s", "x / s"), ("x #s", "x ~s", "x* ~s")),
    "(x + y) / 2": ("x y*",),
    "(x + y) * s": ("x y* #s",),
    "s * x + t * y": ("x y #s #t", "x y* #s #t"),
    "r * x + s * y + t * z + u * w": ("x y z w #r #s #t #u",),
    "x + y * s": ("y ~s x", "x y ~s"),
    "x - y * s": ("x y ~s",),
    "x * 0": ("x",),
    "x * t / s": ("x ~t ~s",),
    "x * t / s - y": ("x y ~t ~s",),
    "x * f * f": ("x ~f",),
}
"""Expressions of the package's own calls, and their operands in the order of arguments: `#s` is a number, `~s` is real,
and `y*` is a conjugated view if the matrices are complex."""
NOT_ZERO, FACTOR = parse("maximum(s, 1e-300)"), parse("1 / sqrt(sqrt(maximum(s, 1e-100)))")
"""Expressions of norms, in 64 bits."""


def programs(dtype: Dtype) -> Iterator[Program]:
    """The programs of `EXPRESSIONS` for matrices of a dtype, and of copies in either precision."""
    kinds: dict[str, Dtype | None] = {"#": None, "~": np.empty(0, dtype).real.dtype}
    results = dtype, np.dtype(_OTHER_PRECISION[dtype.char])
    keys = [_key(Name("x"), {"x": dtype}, out, dtype) for out in results]
    for text, operands in ((text, operands) for text, ways in EXPRESSIONS.items() for operands in ways):
        views = "|".join(re.findall(r"(\w+)\*", operands)) if dtype.kind == "c" else ""
        tree = parse(re.sub(rf"\b({views})\b", r"conj(\1)", text) if views else text, parts=True)
        dtypes = {operand.strip("#~*"): kinds.get(operand[0], dtype) for operand in operands.split()}
        keys.append(_key(tree, dtypes, dtype, dtype))
    double = np.dtype(np.float64)
    for tree, out in ((NOT_ZERO, double), (FACTOR, np.empty(0, dtype).real.dtype)):
        keys.append(_key(tree, {"s": double}, out, double))
    for key in dict.fromkeys(keys):
        yield from (Program(source(*key, packs=packs)) for packs in (0, _PACKS))


def _key(tree: Node, dtypes: Mapping[str, Dtype | None], out: Dtype, compute: Dtype) -> tuple[Any, ...]:
    """The arguments of `source` for an expression of operands of these dtypes, None for numbers."""
    first, canonical, own = _canonical(tree, dtypes)
    return canonical, tuple(dtypes[own[name]] for name in operand_names(canonical)), dtypes[first], out, compute


def _canonical(tree: Node, dtypes: Mapping[str, Dtype | None]) -> tuple[str, Node, dict[str, str]]:
    """(the first array, the expression with it as x and numbered operands, these and their names in `dtypes`)."""
    first = next(name for name, dtype in dtypes.items() if dtype is not None)
    own = {f"o{number}": name for number, name in enumerate(dtypes)}
    return first, renamed(tree, {name: new for new, name in own.items()} | {first: RESULT}), own


def _is_tight(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether the elements of a matrix follow each other in memory, by rows or by columns.

    >>> [_is_tight((2, 3), strides, 8) for strides in ((24, 8), (8, 16), (8, 24), (32, 8))]
    [True, True, False, False]
    """
    if len(shape) != 2:
        return shape == () or strides == (itemsize,)
    (m, n), (down, across) = shape, strides
    return (across == itemsize and down == n * itemsize) or (down == itemsize and across == m * itemsize)


def _lines(arrays: Sequence[GpuArray]) -> tuple[int, int, list[tuple[int, int]]]:
    """(lines, elements of a line, strides of each array along and across them): as the first array is stored."""
    first = arrays[0]
    slow, fast = (0, *first.strides)[-2:]
    transposed = first.ndim > 1 and abs(slow) < abs(fast)
    lines, length = (1, *first.shape)[-2:][:: -1 if transposed else 1]
    places = []
    for z in arrays:
        itemsize = z.itemsize
        steps = [stride // itemsize if n > 1 else 0 for n, stride in zip(z.shape, z.strides, strict=True)]
        across, along = (0, 0, *steps)[-2:]
        places.append((across, along) if transposed else (along, across))
    return lines, length, places


def _masks(pack: int, length: int, arrays: Sequence[GpuArray], places: Sequence[tuple[int, int]]) -> list[int] | None:
    """Bits of the addresses of arrays that are 0 if all packs are whole and aligned; None if no packs are whole."""
    masks = [pack * z.itemsize - 1 for z in arrays]
    if length % pack or any(
        fast != 1 or slow * z.itemsize & mask for z, (fast, slow), mask in zip(arrays, places, masks, strict=True)
    ):
        return None
    return masks


class Pointwise:
    """Expressions of arrays on this thread's current GPU, each compiled at its first use."""

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self._cupy, self._driver = cupy, driver
        device = cupy.cuda.Device()
        self._sms: int = device.attributes["MultiProcessorCount"]
        self._early = int(device.compute_capability) >= EARLY_CAPABILITY
        self._compiled: dict[Any, tuple[int, Any]] = {}
        self._launches: dict[Any, _Launch] = {}
        self._words = WordArguments(_HEAD_WORDS + TERM_WORDS * MAX_TERMS)

    def combine(self, stream: Stream, tree: Node, operands: Mapping[str, Any], compute: Dtype, out: Array) -> None:
        """Launch Out := the value of an expression of arrays of any dtypes, rounded once."""
        self._evaluate(stream, tree, operands, compute, out, None)

    def evaluate(
        self,
        stream: Stream,
        tree: Node,
        x: GpuArray,
        operands: Mapping[str, Any],
        out: GpuArray,
        compute: Dtype | None = None,
    ) -> None:
        """Launch Out := the value of an expression, computed in 32 bits at least and rounded once."""
        if out.size:
            self._evaluate(stream, tree, operands, compute, out, x)

    def _evaluate(
        self,
        stream: Stream,
        tree: Node,
        operands: Mapping[str, Any],
        compute: Dtype | None,
        out: GpuArray,
        x: GpuArray | None,
    ) -> None:
        """Launch the kernel for arrays of these layouts; x is that of the expression, or one of the operands."""
        ndarray = self._cupy.ndarray
        layout: list[Any] = [id(tree), compute, out.dtype, out.shape, out.strides]
        if x is not None:
            layout += (x.dtype, x.shape, x.strides)
        for name, z in operands.items():
            layout += (name, z.dtype, z.shape, z.strides) if isinstance(z, ndarray) else (name, None)
        key = tuple(layout)
        launch = self._launches.get(key)
        if launch is None:
            launch = self._prepared(tree, operands, compute, out, x)
            if len(self._launches) >= _MOST_KNOWN:
                self._launches.clear()
            self._launches[key] = launch
        words, wrong = launch.words, int(launch.is_ragged)
        for name, place, mask in launch.arrays:
            array: Any = out if not place else x if x is not None and name == RESULT else operands[name]
            words[place] = address = array.data.ptr
            wrong |= address & mask
        for name, place in launch.numbers:
            words[place : place + TERM_WORDS] = number_term(operands[name])
        function = launch.functions.get(not wrong)
        if function is None:
            function = launch.functions[not wrong] = self._function(launch.key, 0 if wrong else _PACKS)
        self._launch(function, stream, words, launch.ctas[bool(wrong)])

    def _prepared(
        self, tree: Node, operands: Mapping[str, Any], compute: Dtype | None, out: GpuArray, x: GpuArray | None
    ) -> _Launch:
        """The launch for arrays of these layouts."""
        dtypes = {name: z.dtype if isinstance(z, self._cupy.ndarray) else None for name, z in operands.items()}
        first, canonical, own = RESULT, tree, {name: name for name in dtypes}
        if x is None:  # the names of operands change no kernel
            first, canonical, own = _canonical(tree, dtypes)
        start = operands[first] if x is None else x
        names = operand_names(canonical)
        check_count(len(names))
        terms = [own[name] for name in names]
        used = tuple(dtypes[name] for name in terms)
        arrays = [out, start, *[operands[name] for name in terms if dtypes[name] is not None]]
        pack = _PACK_NBYTES // pack_nbytes(used, start.dtype, out.dtype, compute)
        layout = out.shape, out.strides, out.itemsize
        if _is_tight(*layout) and all((z.shape, z.strides, z.itemsize) == layout for z in arrays):
            lines, length, places = 1, out.size, [(1, 0)] * len(arrays)  # all elements, in the order of memory
        else:
            lines, length, places = _lines(arrays)
        masks = _masks(pack, length, arrays, places)
        packs = -(-length // pack)
        whole = lines * -(-packs // (_THREADS * _PACKS))
        is_ragged = masks is None or whole > _MOST_CTAS
        words = [0, lines, *places[0], length, 0, *places[1]]
        pointers, numbers, remaining = [0, _HEAD_WORDS], [], iter(places[2:])
        for name in terms:
            if dtypes[name] is None:
                numbers.append((name, len(words)))
            else:
                pointers.append(len(words))
            words += (0, 0, 0) if dtypes[name] is None else (0, *next(remaining))
        named = "", first, *(name for name in terms if dtypes[name] is not None)
        return _Launch(
            tree,
            (canonical, used, start.dtype, out.dtype, compute),
            words,
            tuple(zip(named, pointers, masks or [0] * len(arrays), strict=True)),
            tuple(numbers),
            (whole, min(-(-lines * packs // _THREADS), _CTAS_PER_SM * self._sms)),
            is_ragged,
            {},
        )

    def normalise(
        self,
        stream: int,
        x: GpuArray,
        out: GpuArray,
        *,
        residual: GpuArray | None = None,
        weight: GpuArray | None = None,
        eps: float = 0.0,
    ) -> None:
        """Launch Out := the rows of x, each divided by sqrt(mean of its squares + eps), times weight.

        With a residual, the kernel first adds x to it, stores the rounded sum there, and normalises that sum.
        """
        if not out.size:
            return
        rows, columns = out.shape
        matrices = [z for z in (x, out, residual) if z is not None]
        assert all(z.strides[1] == z.itemsize or columns == 1 for z in matrices), "rows are contiguous"
        lds = [0 if z is None else z.strides[0] // z.itemsize for z in (x, out, residual)]
        places = [0 if z is None else z.data.ptr for z in (x, out, residual, weight)]
        words = [*places, rows, columns, *lds, *number_term(eps)]
        function = self.load_rows(x.dtype, x.dtype if weight is None else weight.dtype)
        self._launch(function, stream, words, min(rows, _ROWS_PER_SM * self._sms), early=self._early)

    def _launch(self, function: int, stream: Stream, words: list[int], ctas: int, *, early: bool = False) -> None:
        if not early and isinstance(stream, int):
            self._words.launch(function, stream, (ctas, 1), _THREADS, words)
            return
        words = words.copy()  # which the next launch changes

        def start(handle: int) -> None:
            if not early:
                self._words.launch(function, handle, (ctas, 1), _THREADS, words)
                return
            self._words.write(words)
            config = configured(handle, ctas, _THREADS, early=True)
            kernel = self._driver.CUfunction(function)
            (status,) = self._driver.cuLaunchKernelEx(config, kernel, self._words.address, 0)
            if status:
                text = f"an expression could not be evaluated on stream {handle:#x}: {status.name}"
                raise errors.BackendError(text)

        give(stream, start, words)

    def _function(self, key: tuple[Any, ...], packs: int) -> int:
        """The kernel for the arguments of `source`."""
        return self._loaded("pointwise_all", (*key, packs), lambda: source(*key, packs=packs))

    def load_rows(self, x: Dtype, weight: Dtype) -> int:
        """The kernel that normalises rows; compiled at its first use."""
        types = f"typedef {type_name(x)} X;\ntypedef {type_name(weight)} Weight;\n"
        return self._loaded(
            "normalise_rows", (x, weight), lambda: functions(x) + types + expanded(FOLDER / "normalise.cu")
        )

    def _loaded(self, name: str, key: object, code: Callable[[], str]) -> int:
        compiled = self._compiled.get((name, key))
        if compiled is None:
            program = Program(code())
            compiled = int(program.get_function(name).kernel.ptr), program
            self._compiled[name, key] = compiled
        return compiled[0]


def check_count(count: int) -> None:
    """Raise ArgumentError if an expression has too many operands."""
    if count >= MAX_TERMS:
        raise errors.ArgumentError(f"an expression on a GPU has {MAX_TERMS - 1} operands at most, got {count}")
