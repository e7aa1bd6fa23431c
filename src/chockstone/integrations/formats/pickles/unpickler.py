"""The unpickler: turns a pickle into containers and plain values. It is used for every pickle of a foreign checkpoint.

A pickle is a program. This one may build lists, tuples, dicts, sets, numbers, text and bytes, and call what a table of
names allows. A name that is not in the table is collected and called never. It does not depend on the version of torch,
whose own restricted unpickler had holes, and allocates whatever size a pickle asks for.
"""

from __future__ import annotations

import io
import pickle
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from reprlib import repr as short_repr
from typing import Any, ClassVar, Final, NamedTuple

_BASE_VALUES: Final = 4_000_000  # that any pickle may build
_BYTES_PER_VALUE: Final = 4  # of a larger pickle: it may build a value for each so many bytes
_MAX_KEY_PARTS: Final = 100
_MAX_FOREIGN: Final = 100
_KEYS: Final = (str, int, float, bool, bytes, complex, type(None))
_DICTS: Final = (dict, OrderedDict, Counter)
_COMMON: Final = 3  # from this protocol on, names are those of Python 3

# Opcodes whose code in Python is safe for any input. BYTEARRAY8 allocates what it is told, so it is not among them.
_SAFE: Final = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWFALSE", "NEWTRUE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"),
    *("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "BINPERSID"),
)


class Builder(NamedTuple):
    """What stands for a class or a function that a pickle may call."""

    make: Callable[..., Any]


class StandIn:
    """A value that keeps the state which a pickle gives it, to be checked when the pickle is read."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Foreign:
    """Stands for a name that is not read, and for whatever it would make."""


class ForeignNames(pickle.UnpicklingError):
    """A pickle refers to classes or functions that are not read; ``names`` has them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"it refers to {', '.join(names)[:200]}")
        self.names = names


class PlainUnpickler(pickle._Unpickler):
    """Reads one pickle after the other. Raises ForeignNames, UnpicklingError and what damaged pickles provoke."""

    stack: list[Any]  # Any: values that are being built
    proto: int
    dispatch: ClassVar[dict[int, Any]] = {}  # Any: methods, by the number of their opcode

    def __init__(
        self, content: bytes | io.BytesIO, names: Mapping[str, Any], find_storage: Callable[[Any], Any] | None = None
    ) -> None:
        """``names``: by full name, a Builder or a value. ``find_storage`` resolves the persistent ids of torch."""
        stream = io.BytesIO(content) if isinstance(content, bytes) else content
        super().__init__(stream, encoding="utf-8")
        self._names = names
        self._find_storage = find_storage
        self._left = _BASE_VALUES + stream.getbuffer().nbytes // _BYTES_PER_VALUE
        self._foreign: dict[str, None] = {}

    def load(self) -> Any:
        try:
            value = super().load()
        except Exception as error:
            if self._foreign:
                raise ForeignNames(tuple(self._foreign)) from error
            raise
        if self._foreign:
            raise ForeignNames(tuple(self._foreign))
        return value

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < _COMMON:
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        full = f"{module}.{name}"
        if full in self._names:
            return self._names[full]
        if len(self._foreign) < _MAX_FOREIGN:
            self._foreign[full[:200]] = None
        return Foreign()

    def persistent_load(self, wanted: Any) -> Any:
        if self._find_storage is None:
            raise pickle.UnpicklingError("it refers to tensor data where there is none")
        return self._find_storage(wanted)

    def count(self, values: int = 1) -> None:
        self._left -= values
        if self._left < 0:
            raise pickle.UnpicklingError("it builds more values than a checkpoint of its size has")

    def load_reduce(self) -> None:
        arguments, called = self.stack.pop(), self.stack[-1]
        if type(arguments) is not tuple or type(called) not in (Builder, Foreign):
            raise pickle.UnpicklingError(f"it calls {_show(called)}")
        for argument in arguments:  # what is called may copy it, and a pickle may give it a thousand times
            if isinstance(argument, str | bytes):
                self.count(len(argument) // _BYTES_PER_VALUE)
            elif isinstance(argument, list | tuple | dict):
                self.count(len(argument))
        self.stack[-1] = called.make(*arguments) if isinstance(called, Builder) else Foreign()

    def load_newobj_ex(self) -> None:
        options = self.stack.pop()
        if options != {}:
            raise pickle.UnpicklingError("it calls a class with options")
        self.load_reduce()

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StandIn):
            target.__setstate__(state)
        elif type(target) is OrderedDict and type(state) is dict:
            if "_metadata" in state:  # module versions, kept by nn.Module
                target._metadata = state["_metadata"]  # type: ignore[attr-defined]  # as torch does
        elif type(target) is not Foreign:
            raise pickle.UnpicklingError(f"it sets attributes of {_show(target)}")

    def load_append(self) -> None:
        item = self.stack.pop()
        self._extend(list, [item])

    def load_appends(self) -> None:
        self._extend(list, self._pop_items())

    def load_additems(self) -> None:
        items = self._pop_items()
        check_keys(items)
        self._extend(set, items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self._pop_items())

    def load_frozenset(self) -> None:
        items = self._pop_items()
        check_keys(items)
        self.stack.append(frozenset(items))

    def _pop_items(self) -> list[Any]:
        items: list[Any] = self.pop_mark()  # type: ignore[attr-defined]  # of the unpickler in Python
        return items

    def _extend(self, kind: type, items: list[Any]) -> None:
        target: Any = self.stack[-1]
        if type(target) is Foreign:
            return
        if type(target) is not kind:
            raise pickle.UnpicklingError(f"it adds items to {_show(target)}")
        add: Callable[[list[Any]], None] = getattr(target, "extend" if kind is list else "update")
        add(items)

    def _set_items(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if type(target) is Foreign:
            return
        if type(target) not in _DICTS:
            raise pickle.UnpicklingError(f"it sets items of {_show(target)}")
        check_keys(keys)
        for key, value in zip(keys, items[1::2], strict=True):
            target[key] = value

    for _name in _SAFE:
        _code = getattr(pickle, _name)[0]
        dispatch[_code] = pickle._Unpickler.dispatch[_code]
    for _name, _load in {
        "REDUCE": load_reduce,
        "NEWOBJ": load_reduce,
        "NEWOBJ_EX": load_newobj_ex,
        "BUILD": load_build,
        "APPEND": load_append,
        "APPENDS": load_appends,
        "ADDITEMS": load_additems,
        "SETITEM": load_setitem,
        "SETITEMS": load_setitems,
        "FROZENSET": load_frozenset,
    }.items():
        dispatch[getattr(pickle, _name)[0]] = _load
    dispatch = {
        _code: lambda self, load=_load: (self.count(), load(self))
        for _code, _load in dispatch.items()  # both are of the item
    }


def check_keys(keys: list[Any]) -> None:
    """Raise UnpicklingError for keys that take long to hash: tuples that hold each other many times over."""
    for key in keys:
        if type(key) in _KEYS or isinstance(key, StandIn | Foreign):
            continue
        pending, left = [key], _MAX_KEY_PARTS
        while pending:
            part = pending.pop()
            left -= 1
            if type(part) in (tuple, frozenset) and len(part) < left:
                pending.extend(part)
            elif left <= 0 or type(part) not in _KEYS:
                raise pickle.UnpicklingError(f"it has a key that is {_show(key)}")


def _show(value: object) -> str:
    """A value for a message. A value of a pickle may be endless to print."""
    return f"a {type(value).__name__}, {short_repr(value)[:100]}"
