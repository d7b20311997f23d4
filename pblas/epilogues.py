"""Epilogues: elementwise functions applied to a result before it is stored, as expressions or by name.

An expression is a Python expression of allowed operators and functions. It is parsed into a tree of three kinds of
nodes, without an array library. `pblas.backends.cpu.pointwise` evaluates the tree with NumPy, and
`pblas.backends.cuda.pointwise` prints it as CUDA source code.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pblas import errors

RESULT = "x"  # the name of the result in an expression
COMPLEX_FUNCTIONS = MappingProxyType(
    {"where": 3} | dict.fromkeys(("exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cos", "tan"), 1)
)
"""Functions of real and complex arrays, with their numbers of arguments."""
REAL_VALUED = ("abs", "real", "imag", "isnan", "isfinite")
"""Functions whose value is real, also in expressions of complex matrices."""
REAL_FUNCTIONS = MappingProxyType(
    {"maximum": 2, "minimum": 2}
    | dict.fromkeys(("abs", "isnan", "isfinite", "floor", "ceil", "sign"), 1)
    | dict.fromkeys(("erf", "sigmoid", "relu", "gelu", "gelu_tanh", "silu"), 1)
)
"""Functions of real arrays only, with their numbers of arguments. isnan and isfinite are 1 or 0. gelu is exact:
x / 2 (1 + erf(x / sqrt(2))). gelu_tanh is the approximation that some models are trained with:
x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
FUNCTIONS = MappingProxyType({**COMPLEX_FUNCTIONS, **REAL_FUNCTIONS})
"""The functions of epilogues, with their numbers of arguments."""
PARTS = MappingProxyType({"conj": 1, "real": 1, "imag": 1})
"""Functions that only expressions of matrices have (not epilogues), and their numbers of arguments."""
_TANH_OF_AUX = "tanh(0.7978845608028654 * (aux + 0.044715 * aux * aux * aux))"
NAMED = MappingProxyType(
    {
        "bias": "x + bias",
        "relu": "relu(x)",
        "gelu": "gelu(x)",
        "gelu_tanh": "gelu_tanh(x)",
        "silu": "silu(x)",
        "swiglu": "silu(gate) * x",
        "drelu": "where(aux > 0, x, 0)",
        "dgelu": "x * (0.5 + 0.5 * erf(0.7071067811865476 * aux) + 0.3989422804014327 * aux * exp(-0.5 * aux * aux))",
        "dgelu_tanh": (
            f"x * (0.5 + 0.5 * {_TANH_OF_AUX} + "
            f"aux * (1 - {_TANH_OF_AUX} ** 2) * (0.3989422804014327 + 0.05351611220445019 * aux * aux))"
        ),
        "dsilu": "x * sigmoid(aux) * (1 + aux * (1 - sigmoid(aux)))",
        "dswiglu_gate": "x * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))",
        "dswiglu_up": "x * silu(gate)",
    }
)
"""Expressions by name. A name that begins with d is a backward pass: x is the gradient with respect to the function's
value, the result the gradient with respect to its argument. The operand `aux` is that argument; for swiglu the two
arguments are `gate` and `up`."""
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
"""Functions that are allowed as the first argument of `where`, and nowhere else."""
NEED_REAL = frozenset({*REAL_FUNCTIONS, *COMPARISONS[:4], "remainder", "floor_divide"})
"""Functions and operators that complex numbers lack."""

_SIGNS = "+ - * / // % **"
_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "power",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
_MAX_DEPTH, _MAX_TERMS, _MAX_SHOWN = 100, 250, 100
_MAX_PARSED = 256
_RESULT_WORD = re.compile(rf"\b{RESULT}\b")


@dataclass(frozen=True, slots=True)
class Number:
    """A literal number."""

    value: float  # the number, finite


@dataclass(frozen=True, slots=True)
class Name:
    """The result or an operand."""

    name: str  # `RESULT`, or the name of the operand


@dataclass(frozen=True, slots=True)
class Apply:
    """A function applied to other nodes."""

    function: str  # a key of `FUNCTIONS`, one of `COMPARISONS`, or the name of an operator: "add", "negative", ...
    arguments: tuple[Node, ...]  # the arguments of the function


Node = Number | Name | Apply


def nodes(tree: Node) -> Iterator[Node]:
    """All nodes of a tree; each node comes before its arguments.

    >>> [type(node).__name__ for node in nodes(parse("2 * x"))]
    ['Apply', 'Number', 'Name']
    """
    yield tree
    if isinstance(tree, Apply):
        for argument in tree.arguments:
            yield from nodes(argument)


def operand_names(tree: Node) -> list[str]:
    """The names of the operands of an expression, in the order of their first use.

    >>> operand_names(parse("x * s + bias * s"))
    ['s', 'bias']
    """
    return list(dict.fromkeys(n.name for n in nodes(tree) if isinstance(n, Name) and n.name != RESULT))


def parse(text: str, *, parts: bool = False) -> Node:
    """Parse an expression.

    >>> parse("relu(x)")
    Apply(function='relu', arguments=(Name(name='x'),))
    >>> parse("x + y @ x")
    Traceback (most recent call last):
    pblas.errors.ArgumentError: 'x + y @ x', column 7: there is no operator @; there are + - * / // % **
    """
    if not isinstance(text, str):
        raise errors.ArgumentError(f"an expression must be a string, got {type(text).__name__}")
    return _parsed(" ".join(text.split()), parts)


@lru_cache(_MAX_PARSED)
def _parsed(line: str, parts: bool) -> Node:
    """Parse an expression in one line; cached, since programs parse the same few expressions with every call."""
    if "#" in line:  # Python would ignore the rest of the line, even if the text had several lines
        raise _error(line, line.index("#") + 1, "comments are not allowed in an expression")
    try:
        body = ast.parse(line, mode="eval").body
    except SyntaxError as caught:
        raise _error(line, caught.offset or len(line) + 1, caught.msg) from None
    except (ValueError, RecursionError, MemoryError):  # a zero byte; a thousand nested parentheses
        raise _error(line, 1, "this is not an expression") from None
    return _Parser(line, {**FUNCTIONS, **PARTS} if parts else FUNCTIONS).node(body, 0)


class _Parser:
    """Converts a tree of the module ast into nodes; errors name the column."""

    def __init__(self, text: str, functions: Mapping[str, int]) -> None:
        self._text, self._functions = text, functions

    def node(self, expression: ast.expr, depth: int, terms: int = 1) -> Node:
        if depth > _MAX_DEPTH:
            raise self._error(expression, f"nested more than {_MAX_DEPTH} deep")
        if terms > _MAX_TERMS:
            raise self._error(expression, f"more than {_MAX_TERMS} operands one after the other")
        match expression:
            case ast.Constant(value=bool() | str() | bytes() | complex() | None):
                raise self._error(expression, "expected a real number")
            case ast.Constant(value=int() | float() as value):
                return Number(self._finite(expression, value))
            case ast.Name(id=name):
                if name in self._functions:
                    raise self._error(expression, f"{name} is a function; write {name}(...)")
                return Name(name)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.node(expression.operand, depth + 1)
            case ast.UnaryOp(op=ast.USub()):
                return Apply("negative", (self.node(expression.operand, depth + 1),))
            case ast.BinOp() if type(expression.op) in _OPERATORS:
                # x + y + z is (x + y) + z, and no deeper than x + y
                left = self.node(expression.left, depth, terms + 1)
                return Apply(_OPERATORS[type(expression.op)], (left, self.node(expression.right, depth + 1)))
            case ast.BinOp():
                raise self._no_operator(expression)
            case ast.Compare():
                raise self._error(expression, "a comparison is allowed as the first argument of where(...) only")
            case ast.Call():
                return self._call(expression, depth)
        raise self._error(expression, f"expected numbers, names, {_SIGNS} and calls of functions")

    def _call(self, call: ast.Call, depth: int) -> Node:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name not in self._functions:
            unknown = f"there is no function {ast.unparse(call.func)}"
            raise self._error(call, f"{unknown}; there are {', '.join(sorted(self._functions))}")
        nargs = self._functions[name]
        if len(call.args) != nargs or call.keywords:
            takes = f"{name} takes {nargs} positional argument{'s' if nargs > 1 else ''}"
            raise self._error(call, f"{takes}, got {len(call.args) + len(call.keywords)}")
        first, *others = call.args
        start = self._comparison(first, depth + 1) if name == "where" else self.node(first, depth + 1)
        return Apply(name, (start, *(self.node(argument, depth + 1) for argument in others)))

    def _comparison(self, comparison: ast.expr, depth: int) -> Node:
        if (
            not isinstance(comparison, ast.Compare)
            or len(comparison.ops) != 1
            or type(comparison.ops[0]) not in _OPERATORS
        ):
            raise self._error(comparison, "the first argument of where must be one comparison, for example x > 0")
        arguments = tuple(self.node(side, depth + 1) for side in (comparison.left, comparison.comparators[0]))
        return Apply(_OPERATORS[type(comparison.ops[0])], arguments)

    def _finite(self, literal: ast.expr, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._error(literal, "the number is too large")
        return number

    def _no_operator(self, operation: ast.BinOp) -> errors.ArgumentError:
        between = self._column(operation.left.end_col_offset or 0) - 1, self._column(operation.right.col_offset) - 1
        written = self._text[slice(*between)]
        operator = written.strip(" ()")
        column = between[0] + written.index(operator) + 1
        return _error(self._text, column, f"there is no operator {operator}; there are {_SIGNS}")

    def _error(self, expression: ast.expr, text: str) -> errors.ArgumentError:
        return _error(self._text, self._column(expression.col_offset), text)

    def _column(self, nbytes: int) -> int:
        """The column in characters, from 1, of an offset in bytes, from 0, as the module ast counts."""
        return len(self._text.encode()[:nbytes].decode()) + 1


def renamed(tree: Node, names: Mapping[str, str]) -> Node:
    """A tree with other names of its operands.

    >>> renamed(parse("a + b"), {"a": "x", "b": "y"})
    Apply(function='add', arguments=(Name(name='x'), Name(name='y')))
    """
    if isinstance(tree, Name):
        return Name(names[tree.name])
    if isinstance(tree, Apply):
        return Apply(tree.function, tuple(renamed(argument, names) for argument in tree.arguments))
    return tree


def substituted(text: str, argument: str) -> str:
    """The text of an expression in which another expression replaces x.

    >>> substituted("silu(x) * s", "x + b")
    'silu((x + b)) * s'
    """
    return _RESULT_WORD.sub(f"({argument})", text)


def _error(text: str, column: int, what: str) -> errors.ArgumentError:
    """The error of an expression; of a long expression, the text shows only the part around the column."""
    start, stop = (0, len(text)) if len(text) <= _MAX_SHOWN else (max(0, column - 30), column + 30)
    shown = f"{'…' * (start > 0)}{text[start:stop]}{'…' * (stop < len(text))}"
    return errors.ArgumentError(f"{shown!r}, column {column}: {what}")


class Epilogue:
    """A function applied to a result before it is stored, computed in the precision of the last addition.

    One epilogue can be used in many calls. Its errors are raised by these calls, on every rank.

    Args:
        expression: one of (global):
            an elementwise expression in which `x` is the result, for example "silu(x * s) + bias". It may use numbers,
            names of operands, `+ - * / // % **`, exp, log, sqrt, rsqrt, sin, cos, tan, tanh, abs, sign, floor, ceil,
            isnan, isfinite (1 or 0), erf, maximum, minimum, sigmoid, relu, gelu, gelu_tanh, silu, and
            where(x > 0, x, 0.1 * x);
            the name of an expression: "bias" (x + bias), "relu", "gelu", "gelu_tanh", "silu", "swiglu"
            (silu(gate) * x);
            the name of a backward pass, in which `x` is the gradient of the function's value: "drelu", "dgelu",
            "dgelu_tanh" and "dsilu", with the function's argument as operand `aux`; "dswiglu_gate" and "dswiglu_up",
            with swiglu's arguments `gate` and `up`;
            "rmsnorm": each row along the last dimension, divided by the square root of (the mean of its squares plus
            `eps`), and multiplied by `weight`. An operand `residual` is added to x first, and the sum is stored in it.
        operands: the operands by name: numbers; arrays of one dimension, with one element for each column of the last
            dimension; arrays of the result's shape. Arrays have the dtype of the result or of its additions, and the
            same elements on every rank. For "rmsnorm": `weight`, one element for each column (default: ones); `eps`, a
            number (default: 1e-6); `residual`, of the result's shape and dtype (global).

    Source of "rmsnorm": Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    >>> Epilogue("x * s + bias", s=2.0, bias=1.0)
    Epilogue('x * s + bias', s=2.0, bias=1.0)
    >>> Epilogue("silu")
    Epilogue('silu(x)')
    """

    def __init__(self, expression: str, **operands: object) -> None:
        self.expression: str = NAMED.get(str(expression), expression)
        self.operands: MappingProxyType[str, Any] = MappingProxyType(operands)
        self.tree: Node | None = None  # the tree of the expression; None for "rmsnorm" (global)
        self.problem: str | None = None
        """The text of the error in the expression or in the names of the operands; None if they are valid (global)."""
        try:
            if self.is_rmsnorm:
                _check_rmsnorm(operands)
            else:
                self.tree = parse(self.expression)
                _check_names(expression, self.expression, tuple(operands))
        except errors.ArgumentError as caught:
            self.problem = str(caught)

    @property
    def is_rmsnorm(self) -> bool:
        """Whether whole rows are normalised (global)."""
        return self.expression == "rmsnorm"

    @property
    def needs_real(self) -> str | None:
        """A function of real numbers only that the expression uses; None if complex numbers are allowed (global)."""
        if self.is_rmsnorm:
            return "rmsnorm"
        assert self.tree is not None, "the expression is valid"
        used = (node.function for node in nodes(self.tree) if isinstance(node, Apply))
        return next((name for name in used if name in NEED_REAL), None)

    def check(self, opname: str, dtype: Any) -> None:
        """Raise ArgumentError unless the epilogue is valid and can be applied to elements of a dtype (global).

        Args:
            opname: name of the call, for the message.
            dtype: dtype of the result.

        >>> import numpy as np
        >>> Epilogue("relu").check("allreduce", np.dtype("complex64"))
        Traceback (most recent call last):
        pblas.errors.ArgumentError: allreduce: epilogue 'relu(x)': relu is for real arrays, x is complex64
        """
        if self.problem is not None:
            raise errors.ArgumentError(f"{opname}: epilogue {self.problem}")
        if dtype.kind == "c" and self.needs_real:
            raise errors.ArgumentError(
                f"{opname}: epilogue {self.expression!r}: {self.needs_real} is for real arrays, x is {dtype.name}"
            )

    def after_bias(self, bias: object) -> Epilogue:
        """The epilogue of x + bias.

        Args:
            bias: the operand `bias` of the new epilogue (global).

        Raises:
            ArgumentError: the epilogue is "rmsnorm", or has an operand `bias`.

        >>> Epilogue("silu(x) * s", s=2.0).after_bias(1.0)
        Epilogue('silu((x + bias)) * s', s=2.0, bias=1.0)
        """
        text = substituted(self.expression, NAMED["bias"])
        if self.is_rmsnorm or "bias" in self.operands:
            taken = "which cannot add it" if self.is_rmsnorm else "which has an operand of that name"
            raise errors.ArgumentError(f"there is a bias and the epilogue {self.expression!r}, {taken}")
        return Epilogue(text, **self.operands, bias=bias)

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, object]]]:
        return _epilogue, (self.expression, dict(self.operands))

    def __repr__(self) -> str:
        return f"Epilogue({', '.join([repr(self.expression), *(f'{k}={v!r}' for k, v in self.operands.items())])})"


def _epilogue(expression: str, operands: dict[str, Any]) -> Epilogue:
    """An epilogue from its expression and operands, for copy and pickle."""
    return Epilogue(expression, **operands)


@lru_cache(_MAX_PARSED)
def used_names(expression: str) -> frozenset[str]:
    """The names in an expression, that of the result among them; cached as `parse`.

    >>> sorted(used_names("x * s + bias * s"))
    ['bias', 's', 'x']
    """
    return frozenset(node.name for node in nodes(parse(expression)) if isinstance(node, Name))


@lru_cache(_MAX_PARSED)
def _check_names(text: str, expression: str, operands: tuple[str, ...]) -> None:
    """Raise ArgumentError unless the names in an expression are those of the operands; cached as `parse`."""
    tree, used = parse(expression), used_names(expression)
    if isinstance(tree, Name) and tree.name != RESULT and not operands:
        names = ", ".join((*NAMED, "rmsnorm"))
        raise errors.ArgumentError(f"{text!r}: there is no epilogue of this name; there are {names}, and expressions")
    for name in sorted(used - {RESULT}):
        if name not in operands:
            raise errors.ArgumentError(f"{text!r}: there is no operand {name}; pass Epilogue({text!r}, {name}=...)")
    for name in operands:
        if name == RESULT or name in FUNCTIONS:
            what = "the result" if name == RESULT else "a function"
            raise errors.ArgumentError(f"{text!r}: {name} is {what}; give the operand another name")
        if name not in used:
            raise errors.ArgumentError(f"{text!r}: the operand {name} is not used; leave it out")


def _check_rmsnorm(operands: Mapping[str, object]) -> None:
    """Raise ArgumentError unless all operands are operands of "rmsnorm"."""
    for name in operands:
        if name not in ("weight", "eps", "residual"):
            raise errors.ArgumentError(f"'rmsnorm': there is no operand {name}; there are weight, eps and residual")
