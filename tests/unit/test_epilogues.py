"""Laws of expressions: they evaluate as written; an invalid one is refused with the column of the error."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pblas import Epilogue, errors
from pblas.backends.cpu.pointwise import evaluate, evaluator, rms_normalised
from pblas.epilogues import COMPARISONS, FUNCTIONS, NAMED, Apply, Name, Node, Number, nodes, parse

SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "remainder": "%",
    "power": "**",
}
COMPARED = dict(zip(COMPARISONS, ("<", "<=", ">", ">=", "==", "!="), strict=True))
FUNCTIONS_OF_ONE: dict[str, Any] = {
    **{
        name: getattr(math, name)
        for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "floor", "ceil", "isnan", "isfinite")
    },
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "erf": math.erf,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def _larger(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    comparisons = st.builds(Apply, st.sampled_from(COMPARISONS), st.tuples(children, children))
    return st.one_of(
        st.builds(Apply, st.sampled_from(sorted(SIGNS)), st.tuples(children, children)),
        st.builds(Apply, st.just("negative"), st.tuples(children)),
        st.builds(Apply, st.sampled_from(sorted(FUNCTIONS_OF_ONE)), st.tuples(children)),
        st.builds(Apply, st.sampled_from(["maximum", "minimum"]), st.tuples(children, children)),
        st.builds(Apply, st.just("where"), st.tuples(comparisons, children, children)),
    )


LEAVES: st.SearchStrategy[Node] = st.one_of(
    st.builds(Number, st.floats(0, 1e6)), st.builds(Name, st.sampled_from(["x", "bias", "s_2"]))
)
TREES = st.recursive(LEAVES, _larger, max_leaves=12)


def written(tree: Node) -> str:
    """A tree as a user would write it, with all parentheses."""
    if isinstance(tree, Number):
        return repr(tree.value)
    if isinstance(tree, Name):
        return tree.name
    arguments = [written(argument) for argument in tree.arguments]
    if tree.function == "negative":
        return f"(-{arguments[0]})"
    sign = SIGNS.get(tree.function) or COMPARED.get(tree.function)
    return f"{tree.function}({', '.join(arguments)})" if sign is None else f"({arguments[0]} {sign} {arguments[1]})"


def by_hand(tree: Node, names: dict[str, float]) -> float:
    """The value in Python's numbers; an error where it has none."""
    if isinstance(tree, Number):
        return tree.value
    if isinstance(tree, Name):
        return names[tree.name]
    if tree.function == "where":
        comparison, first, second = tree.arguments
        assert isinstance(comparison, Apply)
        a, b = (by_hand(each, names) for each in comparison.arguments)
        yes, no = by_hand(first, names), by_hand(second, names)
        return yes if eval(f"a {COMPARED[comparison.function]} b", {"a": a, "b": b}) else no
    values = [by_hand(argument, names) for argument in tree.arguments]
    if tree.function in ("maximum", "minimum"):
        return (max if tree.function == "maximum" else min)(values)
    if tree.function == "negative":
        return -values[0]
    if tree.function in SIGNS:
        found = eval(f"a {SIGNS[tree.function]} b", {"a": values[0], "b": values[1]})
        if isinstance(found, complex):
            raise ValueError("no real number")
        return float(found)
    return float(FUNCTIONS_OF_ONE[tree.function](values[0]))


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_expressions_are_parsed_as_written(tree: Node) -> None:
    assert parse(written(tree)) == tree
    assert sum(1 for _ in nodes(tree)) >= 1


@settings(max_examples=150, deadline=None)
@given(TREES, st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3))
def test_values_are_pythons(tree: Node, x: float, bias: float, s_2: float) -> None:
    """Values are right to a few units in float64, with arrays or numbers as operands, also in the memory of x."""
    try:
        expected = by_hand(tree, {"x": x, "bias": bias, "s_2": s_2})
    except (ValueError, OverflowError, ZeroDivisionError):
        return
    operands: dict[str, Any] = {"bias": np.full(3, bias), "s_2": s_2}
    found = np.broadcast_to(evaluate(tree, np.full(3, x), operands), 3)
    if abs(expected) < 1e9 and all(abs(v) < 1e9 for v in _values(tree, {"x": x, "bias": bias, "s_2": s_2})):
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)
    with np.errstate(all="ignore"):
        in_place = evaluator(tree, overwrites=True)(np.full((2, 3), x), operands)
    assert np.array_equal(np.broadcast_to(in_place, (2, 3)), np.stack([found] * 2), equal_nan=True)
    assert (operands["bias"] == bias).all()


def _values(tree: Node, names: dict[str, float]) -> list[float]:
    """Values of all nodes but comparisons: a large one takes the digits of a small one."""
    plain = (node for node in nodes(tree) if not (isinstance(node, Apply) and node.function in COMPARISONS))
    return [by_hand(node, names) for node in plain]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_values_stay_in_the_precision_of_x(dtype: Any) -> None:
    x = np.array([0.5, 2.0], dtype)
    real = ["gelu(x)", "gelu_tanh(x)", "where(x > 1, 1e-3, silu(x))", "maximum(x, 0.1)"]
    any_ = ["x * 0.1 + s", "2 ** 0.5", "rsqrt(x) / 3", "x ** 2", "exp(0.1)", "-s", "x ** s"]
    for text in any_ if np.dtype(dtype).kind == "c" else any_ + real:
        assert np.asarray(evaluate(parse(text), x, {"s": 0.7})).dtype == dtype, text


def test_infinities_and_nan_are_results() -> None:
    x = np.array([0.0, -1.0, np.inf, np.nan, -1000.0], np.float32)
    calls = (f"{name}(x)" for name in ("log", "sqrt", "sigmoid", "silu", "gelu", "gelu_tanh", "relu"))
    for text in ("1 / x", "exp(-x)", *calls):
        assert np.isnan(evaluate(parse(text), x, {})[3]), text
    assert evaluate(parse("sigmoid(x)"), x, {})[4] == 0


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("x *", 4, "invalid syntax"),
        ("", 1, "invalid syntax"),
        ("x + y @ x", 7, "there is no operator @"),
        ("(é) << (x)", 5, "there is no operator <<"),
        ("x + foo(x)", 5, "there is no function foo; there are abs, ceil, cos, erf, exp"),
        ("x + x.real", 5, "expected numbers"),
        ("x + exp", 5, "exp is a function"),
        ("exp(x, 1)", 1, "exp takes 1 positional argument, got 2"),
        ("maximum(x)", 1, "maximum takes 2 positional arguments"),
        ("exp(a=x)", 1, "exp takes 1 positional argument, got 1"),
        ("x > 0", 1, "a comparison is allowed as the first argument of where(...) only"),
        ("where(x, 1, 2)", 7, "must be one comparison"),
        ("where(0 < x < 1, 1, 2)", 7, "must be one comparison"),
        ("where(x in x, 1, 2)", 7, "must be one comparison"),
        ("x * True", 5, "expected a real number"),
        ("x * 2j", 5, "expected a real number"),
        ("x * 1e999", 5, "too large"),
        ("x *" + "9" * 400, 4, "too large"),
        ("[x]", 1, "expected numbers"),
        ("x if x else x", 1, "expected numbers"),
        ("lambda: x", 1, "expected numbers"),
        ("__import__('os')", 1, "there is no function __import__"),
        ("+".join("x" * 251), 1, "more than 250 operands one after the other"),
        ("x**(" * 101 + "x" + ")" * 101, 405, "nested more than 100 deep"),
        ("x\n  @ x", 3, "there is no operator @"),
        ("x  # doubled\n + x", 3, "comments are not allowed in an expression"),
    ],
)
def test_an_invalid_expression_is_refused_at_its_column(text: str, column: int, message: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        parse(text)
    assert f", column {column}: " in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250
    assert Epilogue(text).problem == str(caught.value)


@pytest.mark.parametrize("text", ["(" * 5000, "x\0", "\ud800", 3, None, b"x"])
def test_what_python_cannot_even_read_is_an_argument_error_too(text: Any) -> None:
    assert Epilogue(text).problem is not None


@pytest.mark.parametrize(
    ("expression", "operands", "problem"),
    [
        ("x + b", {}, "there is no operand b"),
        ("swish", {}, "there is no epilogue of this name; there are bias, relu, "),
        ("swish", {"s": 1.0}, "there is no operand swish"),
        ("x", {"b": 1.0}, "the operand b is not used"),
        ("x", {"x": 1.0}, "x is the result"),
        ("x", {"exp": 1.0}, "exp is a function"),
        ("rmsnorm", {"bias": 1.0}, "there are weight, eps and residual"),
    ],
)
def test_operands_belong_to_the_expression(expression: str, operands: dict[str, Any], problem: str) -> None:
    assert problem in (Epilogue(expression, **operands).problem or "")


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_gradients_are_differences_of_values(name: str) -> None:
    """Central differences of order h^2, away from where relu has none; and the chain rule's factor is x."""
    aux, h = np.linspace(-6, 6, 48), 1e-5
    assert not (aux == 0).any()
    up, down = (np.asarray(evaluate(parse(NAMED[name]), aux + step, {})) for step in (h, -h))
    for x in (1.0, -2.5):
        found = evaluate(parse(NAMED[f"d{name}"]), np.full_like(aux, x), {"aux": aux})
        assert np.allclose(found, x * (up - down) / (2 * h), rtol=0, atol=1e-9)


def test_the_approximation_of_gelu_is_one() -> None:
    x = np.linspace(-8, 8, 400)
    assert np.abs(evaluate(parse("gelu_tanh(x)"), x, {}) - evaluate(parse("gelu(x)"), x, {})).max() < 5e-4


@pytest.mark.parametrize("name", NAMED)
def test_names_stand_for_expressions(name: str) -> None:
    operands = {each.name: 1.0 for each in nodes(parse(NAMED[name])) if isinstance(each, Name) and each.name != "x"}
    assert repr(Epilogue(name, **operands)) == repr(Epilogue(NAMED[name], **operands))
    assert Epilogue(name, **operands).problem is None


def test_an_epilogue_can_be_copied_and_kept_in_a_file() -> None:
    for epilogue in (Epilogue("silu(x) * s + bias", s=2.0, bias=np.arange(3.0)), Epilogue("rmsnorm", eps=1e-3)):
        for copy in (pickle.loads(pickle.dumps(epilogue)), deepcopy(epilogue)):
            assert repr(copy) == repr(epilogue)
            assert copy.tree == epilogue.tree
            assert copy.problem is None
            if "bias" in copy.operands:
                assert not np.shares_memory(copy.operands["bias"], epilogue.operands["bias"])


def test_a_bias_comes_before_the_expression() -> None:
    x, bias = np.array([-1.0, 2.0]), np.array([3.0, -7.0])
    for epilogue in (Epilogue("relu"), Epilogue("x * x_2 + maximum(x, 0.5)", x_2=0.25)):
        assert epilogue.tree is not None
        plain = np.asarray(evaluate(epilogue.tree, x + bias, epilogue.operands))
        both = epilogue.after_bias(bias)
        assert both.tree is not None
        assert np.array_equal(evaluate(both.tree, x, both.operands), plain)
    for epilogue in (Epilogue("bias", bias=1.0), Epilogue("rmsnorm")):
        with pytest.raises(errors.ArgumentError, match="there is a bias and the epilogue"):
            epilogue.after_bias(bias)


def test_which_functions_need_real_numbers() -> None:
    assert Epilogue("exp(x) / 2 + sqrt(x)").needs_real is None
    assert Epilogue("exp(x) + where(x > 0, 1, 2)").needs_real == "greater"
    assert Epilogue("where(x == 0, 1, x)").needs_real is None
    assert Epilogue("exp(x) % 2").needs_real == "remainder"
    assert Epilogue("rmsnorm").needs_real == "rmsnorm"
    assert set(FUNCTIONS) == {*FUNCTIONS_OF_ONE, "maximum", "minimum", "where"}


@pytest.mark.parametrize("columns", [0, 1, 7])
def test_rows_are_normalised_each_on_its_own(columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, columns))
    weight = np.arange(columns, dtype=float)
    found = rms_normalised(x, weight, 0.5)
    assert found.shape == x.shape
    for row, normal in zip(x, found, strict=True):
        assert np.allclose(normal, row / math.sqrt(row @ row / max(columns, 1) + 0.5) * weight, rtol=1e-14)
