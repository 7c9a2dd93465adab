"""Every public name says what it is, names its parameters, and the errors that it raises."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import pytest

import sheafprop

SUBPACKAGES = ["sheafprop"] + [
    module.name
    for module in pkgutil.walk_packages(sheafprop.__path__, "sheafprop.")
    if module.ispkg
]


def is_ours(thing):
    return (getattr(thing, "__module__", None) or "").startswith("sheafprop")


def function_of(member):
    """The function behind a method, class method, static method or property; None for others."""
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, None) or member
    if not inspect.isfunction(member) or not is_ours(member):
        return None
    # PyG writes some methods of a layer itself when a program is made of it.
    written_here = Path(member.__code__.co_filename).is_relative_to(sheafprop.__path__[0])
    return member if written_here else None


def public_names(subpackage):
    """``(name, object, owner)`` of what a subpackage exports; a method belongs to its class."""
    module = importlib.import_module(subpackage)
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if not is_ours(thing) or not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        yield f"{subpackage}.{name}", thing, None
        if inspect.isclass(thing):
            for key, _ in inspect.getmembers_static(thing):
                found = function_of(inspect.getattr_static(thing, key))
                if found is not None and not key.startswith("_"):
                    yield f"{subpackage}.{name}.{key}", found, thing


def is_hook(function, owner):
    """Whether a framework defines this method and calls it; what comes in is the framework's."""
    name = function.__name__
    return name != "forward" and any(
        name in base.__dict__ for base in owner.__mro__ if not is_ours(base)
    )


def documentation(thing, owner):
    """The text of a name itself, or of the method that it overrides."""
    if owner is None:
        return thing.__doc__ or ""
    bases = [base.__dict__.get(thing.__name__) for base in owner.__mro__ if is_ours(base)]
    own = [function_of(base) for base in bases if base is not None]
    return "\n".join(function.__doc__ or "" for function in own if function is not None)


def referred(text, thing, owner):
    """The texts that a docstring sends its reader to."""
    for path in re.findall(r":(?:meth|func|class):`~?([\w.]+)`", text):
        *parts, last = path.split(".")
        module = inspect.getmodule(thing)
        places = [owner] if owner and not parts else []
        places += [getattr(module, parts[-1], None)] if parts else []
        places += [module, *(importlib.import_module(subpackage) for subpackage in SUBPACKAGES)]
        for place in places:
            if place is None:
                continue
            for holder in (place, *(getattr(place, part, None) for part in parts[-1:])):
                found = getattr(holder, last, None)
                if found is not None and is_ours(found):
                    yield found.__doc__ or ""


def parameters(thing):
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return
    for parameter in inspect.signature(thing).parameters.values():
        named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named and parameter.name not in ("self", "cls") and not parameter.name.startswith("_"):
            yield parameter.name


def raised(thing):
    """Names of the errors that a function, or the constructor of a class, raises itself."""
    if inspect.isclass(thing):
        thing = next(
            (thing.__dict__[n] for n in ("__init__", "__post_init__") if n in thing.__dict__), None
        )
        if thing is None or not is_ours(thing):
            return set()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except OSError:  # what dataclasses write
        return set()
    return {
        node.exc.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id[0].isupper()
        and node.exc.func.id not in ("NotImplementedError", "AssertionError")
    }


def mentions(texts, name):
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for text in texts)


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_public_names_are_documented_with_their_parameters_and_errors(subpackage):
    missing = []
    for name, thing, owner in public_names(subpackage):
        text = documentation(thing, owner)
        hook = owner is not None and is_hook(thing, owner)
        if not text.strip():
            if not hook:
                missing.append(f"{name} has no docstring")
            continue
        texts = [text, *referred(text, thing, owner)]
        if owner is not None:
            texts.append(owner.__doc__ or "")
        lacking = [] if hook else [p for p in parameters(thing) if not mentions(texts, p)]
        if lacking:
            missing.append(f"{name} does not mention {', '.join(lacking)}")
        errors = [e for e in raised(thing) if not mentions(texts, e)]
        if errors:
            missing.append(f"{name} does not say that it raises {', '.join(sorted(errors))}")
    assert not missing, "\n".join(missing)


def test_examples_give_what_they_print():
    seen, failed = set(), []
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for subpackage in SUBPACKAGES:
        for name, thing, _ in public_names(subpackage):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            module = inspect.getmodule(thing)
            for test in finder.find(thing, name, module):
                if test.examples and runner.run(test, out=failed.append).failed:
                    failed.append(name)
    assert not failed, "".join(failed)
    assert runner.tries >= 20


def test_the_walk_reaches_every_subpackage():
    names = {name for subpackage in SUBPACKAGES for name, _, _ in public_names(subpackage)}
    assert len(names) > 400
    assert {"sheafprop.SheafModel.extend", "sheafprop.nn.SheafConv.forward"} <= names
