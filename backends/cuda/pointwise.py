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


class _Kernels(NamedTuple):
    """What the kernels of an expression depend on."""

    key: tuple[Any, ...]  # the arguments of `source`
    terms: tuple[tuple[str, bool], ...]  # the operands beside x, and whether each is an array
    nbytes: int  # of an element, for the length of packs
    tree: Node  # the expression with the operands' own names
    functions: dict[bool, int]  # for arrays whose packs are whole, and for all others
    first: str = RESULT  # the operand that is x

    @classmethod
    def of(
        cls,
        tree: Node,
        canonical: Node,
        dtypes: Mapping[str, Dtype | None],
        x: Dtype,
        out: Dtype,
        compute: Dtype | None,
    ) -> _Kernels:
        names = operand_names(canonical)
        check_count(len(names))
        used = tuple(dtypes[name] for name in names)
        terms = tuple((name, dtypes[name] is not None) for name in names)
        return cls((canonical, used, x, out, compute), terms, pack_nbytes(used, x, out, compute), tree, {})

    @classmethod
    def combining(cls, tree: Node, dtypes: Mapping[str, Dtype | None], out: Dtype, compute: Dtype) -> _Kernels:
        """Those of an expression whose operands have these dtypes, in this order, None for numbers."""
        names = {name: f"o{number}" for number, name in enumerate(dtypes)}
        first, x = next((name, dtype) for name, dtype in dtypes.items() if dtype is not None)
        canonical = renamed(tree, names | {first: RESULT})
        kernels = cls.of(tree, canonical, {names[name]: dtype for name, dtype in dtypes.items()}, x, out, compute)
        originals = {new: name for name, new in names.items()}
        terms = tuple((originals[new], is_array) for new, is_array in kernels.terms)
        return kernels._replace(terms=terms, first=first)


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
}
"""Expressions of the package's own calls, and their operands in the order of arguments: `#s` is a number, `~s` is real,
and `y*` is a conjugated view if the matrices are complex."""


def programs(dtype: Dtype) -> Iterator[Program]:
    """The programs of `EXPRESSIONS` for matrices of a dtype."""
    kinds: dict[str, Dtype | None] = {"#": None, "~": np.empty(0, dtype).real.dtype}
    for text, operands in ((text, operands) for text, ways in EXPRESSIONS.items() for operands in ways):
        views = "|".join(re.findall(r"(\w+)\*", operands)) if dtype.kind == "c" else ""
        tree = parse(re.sub(rf"\b({views})\b", r"conj(\1)", text) if views else text, parts=True)
        dtypes = {operand.strip("#~*"): kinds.get(operand[0], dtype) for operand in operands.split()}
        key = _Kernels.combining(tree, dtypes, dtype, dtype).key
        yield from (Program(source(*key, packs=packs)) for packs in (0, _PACKS))


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


def _are_whole(pack: int, length: int, arrays: Sequence[GpuArray], places: Sequence[tuple[int, int]]) -> bool:
    """Whether all packs of all arrays are whole, aligned, and of neighbours."""
    if length % pack:
        return False
    for z, (fast, slow) in zip(arrays, places, strict=True):
        itemsize = z.itemsize
        if fast != 1 or (z.data.ptr | slow * itemsize) % (pack * itemsize):
            return False
    return True


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
        self._kernels: dict[Any, _Kernels] = {}
        self._words = WordArguments(_HEAD_WORDS + TERM_WORDS * MAX_TERMS)

    def combine(self, stream: Stream, tree: Node, operands: Mapping[str, Any], compute: Dtype, out: Array) -> None:
        """Launch Out := the value of an expression of arrays of any dtypes, rounded once."""
        ndarray = self._cupy.ndarray
        types = tuple([z.dtype if isinstance(z, ndarray) else None for z in operands.values()])
        key = id(tree), tuple(operands), types, out.dtype, compute
        kernels = self._kernels.get(key)
        if kernels is None:
            kernels = self._keep(
                key, _Kernels.combining(tree, dict(zip(operands, types, strict=True)), out.dtype, compute)
            )
        self._evaluate(stream, kernels, operands[kernels.first], operands, out)

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
        if not out.size:
            return
        ndarray = self._cupy.ndarray
        types = tuple([z.dtype if isinstance(z, ndarray) else None for z in operands.values()])
        key = id(tree), tuple(operands), types, out.dtype, compute, x.dtype
        kernels = self._kernels.get(key)
        if kernels is None:
            dtypes = dict(zip(operands, types, strict=True))
            kernels = self._keep(key, _Kernels.of(tree, tree, dtypes, x.dtype, out.dtype, compute))
        self._evaluate(stream, kernels, x, operands, out)

    def _keep(self, key: tuple[object, ...], kernels: _Kernels) -> _Kernels:
        """Keep kernels, found again by the place of their tree, which stays there as long as they (local)."""
        if len(self._kernels) >= _MOST_KNOWN:
            self._kernels.clear()
        self._kernels[key] = kernels
        return kernels

    def _evaluate(
        self, stream: Stream, kernels: _Kernels, x: GpuArray, operands: Mapping[str, Any], out: GpuArray
    ) -> None:
        """Launch the kernel for arrays of these shapes and strides."""
        shape, strides, pack = out.shape, out.strides, _PACK_NBYTES // kernels.nbytes
        arrays = [out, x, *[operands[name] for name, is_array in kernels.terms if is_array]]
        pointers = [z.data.ptr for z in arrays]
        if _is_tight(shape, strides, out.itemsize) and all([z.shape == shape and z.strides == strides for z in arrays]):  # noqa: C419 - a list takes less time
            lines, length, places = 1, out.size, [(1, 0)] * len(arrays)  # all elements, in the order of memory
            is_whole = not (length % pack or any([pointer % _PACK_NBYTES for pointer in pointers]))  # noqa: C419
        else:
            lines, length, places = _lines(arrays)
            is_whole = _are_whole(pack, length, arrays, places)
        words = [pointers[0], lines, *places[0], length, pointers[1], *places[1]]
        remaining = zip(pointers[2:], places[2:], strict=True)
        for name, is_array in kernels.terms:
            if is_array:
                pointer, place = next(remaining)
                words += pointer, *place
            else:
                words += number_term(operands[name])
        packs = -(-length // pack)
        ctas = lines * -(-packs // (_THREADS * _PACKS))
        is_whole = is_whole and ctas <= _MOST_CTAS
        if not is_whole:
            ctas = min(-(-lines * packs // _THREADS), _CTAS_PER_SM * self._sms)
        function = kernels.functions.get(is_whole)
        if function is None:
            function = kernels.functions[is_whole] = self._function(kernels.key, _PACKS if is_whole else 0)
        self._launch(function, stream, words, ctas)

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
