"""The public names: exactly these, importable, documented, and light until they are used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import goldstick

PUBLIC = {
    "RTN",
    "GoldstickError",
    "Grid",
    "Recipe",
    "Scheme",
    "Targets",
    "__version__",
    "accelerate",
    "apply",
    "evaluate",
    "export",
    "load",
    "optimize",
    "plan",
    "quantize",
    "register",
    "search",
    "set_input_bits",
}


def test_the_public_names_are_these() -> None:
    assert set(goldstick.__all__) == PUBLIC
    assert len(goldstick.__all__) == len(PUBLIC)
    assert set(dir(goldstick)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_each_can_be_imported_and_is_documented(name: str) -> None:
    thing = getattr(goldstick, name)
    assert thing.__name__ == name
    assert len(inspect.getdoc(thing) or "") > 20
    assert thing.__module__.startswith("goldstick.")


@pytest.mark.parametrize(
    "function",
    ["accelerate", "apply", "evaluate", "export", "load", "optimize", "plan", "quantize", "register", "search"],
)
def test_each_function_says_what_it_raises_and_what_its_arguments_are(function: str) -> None:
    thing = getattr(goldstick, function)
    text = inspect.getdoc(thing) or ""
    assert "Raises:" in text
    missing = [name for name in inspect.signature(thing).parameters if f"{name}:" not in text]
    assert missing == []
    raised = [line.strip().split(":")[0] for line in text.split("Raises:")[1].splitlines() if "Error:" in line]
    assert raised
    for error in raised:
        assert issubclass(vars(sys.modules["goldstick.errors"])[error], goldstick.GoldstickError)


@pytest.mark.parametrize("method", ["Scheme.parse", "Recipe.load", "Targets.select"])
def test_a_method_that_can_refuse_says_so(method: str) -> None:
    owner, name = method.split(".")
    assert "Raises:" in (inspect.getdoc(getattr(getattr(goldstick, owner), name)) or "")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'aply'"):
        _ = goldstick.aply


def test_documented_modules_are_there_without_an_import_of_their_own() -> None:
    found = [f"goldstick.{module}.{name}" for module, name in (("errors", "UsageError"), ("api", "doctor"))]
    subprocess.run([sys.executable, "-c", f"import goldstick; {'; '.join(found)}"], check=True)


def test_importing_and_listing_loads_no_torch() -> None:
    script = "import sys, goldstick; dir(goldstick); goldstick.GoldstickError; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.strip() == "False"


def test_the_exception_tree_is_the_one_its_module_draws() -> None:
    from goldstick import errors

    drawing = errors.__doc__ or ""
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert len(classes) > 5
    for error in classes:
        (line,) = [
            line for line in drawing.splitlines() if f"── {error.__name__} " in line or f" {error.__name__}  " in line
        ]
        assert str(error.exit_code) in line.split(error.__name__)[1].split()[0]
