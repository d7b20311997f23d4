"""What checkers and readers see of public names: no result is Any, and each name has a docstring."""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any, ForwardRef

import hatch_build
import pblas
from pblas import blas, layouts, linalg, tp
from pblas.factor.factors import SlogdetResult

MODULES = pblas, blas, linalg, tp, layouts
DESCENDED = {"tuple", "list", "Sequence", "Iterator", "Optional", "Union", "ClassVar"}
"""Types that are Any in part if an element may be; NDArray[Any] and dict[str, Any] say enough."""
PYTHONS = {
    "__init__",
    "__new__",
    "__init_subclass__",
    "__subclasshook__",
    "__class_getitem__",
    "__reduce__",
    "__replace__",
    "__repr__",
    "__array_namespace__",
}
"""Methods whose results are the affair of Python, or of the array API standard."""


def public() -> dict[str, Any]:
    """The public functions and classes."""
    named: dict[str, Any] = {"SlogdetResult": SlogdetResult}
    for module in MODULES:
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            is_ours = getattr(value, "__module__", "").startswith("pblas")
            if not name.startswith("_") and is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
                named[f"{module.__name__}.{name}"] = value
    return named


def results(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The annotated results of a function, of each overload if it has some."""
    function = inspect.unwrap(function)
    for variant in typing.get_overloads(function) or [function]:
        yield name, spelled(inspect.signature(variant).return_annotation)


def spelled(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "Any"
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)


def members(name: str, kind: type) -> Iterator[tuple[str, str]]:
    """The results of the methods and properties of a class, and its annotated attributes."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("pblas")]
    hidden = {hidden for base in ours for hidden in getattr(sys.modules[base.__module__], "_INTERNAL", ())}
    seen = {*hidden, *PYTHONS}
    for base in ours:
        defined = {**inspect.get_annotations(base), **vars(base)}
        for member, value in defined.items():
            if member in seen or (member.startswith("_") and not member.startswith("__")):
                continue
            seen.add(member)
            function = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", value)
            if inspect.isfunction(function) and function.__code__.co_filename.startswith("<"):  # of a dataclass
                continue
            if inspect.isfunction(function) and function.__module__.startswith("pblas"):
                yield from results(f"{name}.{member}", function)
            elif member in inspect.get_annotations(base):
                yield f"{name}.{member}", spelled(inspect.get_annotations(base)[member])


def everything() -> Iterator[tuple[str, str]]:
    """Every public result, as (name, annotation)."""
    for name, value in public().items():
        yield from results(name, value) if inspect.isfunction(value) else members(name, value)
    for node in ast.parse(hatch_build.text()).body:
        if isinstance(node, ast.FunctionDef):
            yield f"pblas.scalapack.{node.name}", "Any" if node.returns is None else ast.unparse(node.returns)


def has_any(node: ast.expr) -> bool:
    """Whether a type is Any, or may be in part."""
    match node:
        case ast.Name(id="Any") | ast.Attribute(attr="Any"):
            return True
        case ast.Constant(value=str() as text):
            return has_any(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, right=right):
            return has_any(left) or has_any(right)
        case ast.Tuple(elts=elements):
            return any(map(has_any, elements))
        case ast.Subscript(value=value, slice=inner):
            return ast.unparse(value).rpartition(".")[2] in DESCENDED and has_any(inner)
    return False


def test_no_public_result_is_any() -> None:
    annotated = list(everything())
    assert len(annotated) > 1000
    assert [name for name, text in annotated if has_any(ast.parse(text, mode="eval").body)] == []


def test_any_is_found() -> None:
    found = [
        has_any(ast.parse(text, mode="eval").body) for text in ("Any", "tuple[int, Any]", "Any | None", "NDArray[Any]")
    ]
    assert found == [True, True, True, False]


def test_operands_have_the_same_names_everywhere() -> None:
    """Matrices are a, b, c and vectors x, y, as arguments of any function of pblas, pblas.blas and pblas.linalg."""
    for name, value in public().items():
        if inspect.isfunction(value):
            named = [each for each in inspect.signature(value).parameters if len(each) == 1]
            assert set(named) <= {*"abcxykmnp"}, name


def test_every_public_name_says_what_it_is() -> None:
    """Functions, classes, and the methods and properties of these classes, which a base class may document."""
    silent = []
    for name, value in public().items():
        documented = {name: value}
        if inspect.isclass(value):
            hidden = getattr(sys.modules[value.__module__], "_INTERNAL", ())
            shown = [x for x in dir(value) if not x.startswith("_") and x not in hidden]
            documented |= {f"{name}.{x}": inspect.getattr_static(value, x) for x in shown}
        silent += [
            text
            for text, each in documented.items()
            if (inspect.isroutine(each) or inspect.isclass(each) or isinstance(each, property))
            and not (each.__doc__ or inspect.getdoc(getattr(value, text.rpartition(".")[2], each)))
            and str(getattr(each, "__module__", "pblas")).startswith("pblas")
        ]
    assert silent == []


def test_methods_have_their_names() -> None:
    """Those that a function makes, too: in tracebacks, profiles and help()."""
    for kind in (*pblas.DistMatrix.__mro__, pblas.Pool):
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and value.__name__ != "_refuse_conversion":
                assert (value.__name__, value.__qualname__) == (name, f"{kind.__name__}.{name}")
