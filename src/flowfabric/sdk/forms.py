"""How one value is stored: as JSON, by the annotation that stands for it.

    store     dump, restore, compare with the original     what cannot come back is refused before it is written
    restore   validate                                     so constraints hold for what comes from elsewhere too

Everything goes through a tuple of one, and the brackets are taken off: an adapter's configuration does not reach a bare
dataclass or TypedDict, but it reaches one inside a tuple. It makes bytes base64, and NaN and infinities texts. A
pydantic model keeps its own configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any, Generic, TypeVar, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import JsonValue, PydanticUndefinedAnnotation
from pydantic.errors import PydanticErrorMixin

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.annotations import EMPTY, Names, annotated, return_annotation, unresolved
from flowfabric.sdk.codecs import Codec, codec
from flowfabric.sdk.errors import ValueRefused
from flowfabric.sdk.likeness import alike
from flowfabric.sdk.reasons import reason

T = TypeVar("T")

_CODECS_KEPT = 1024


class Stored(Generic[T]):
    """A value as it was written, what it comes back as, and in which way the two differ, if they do."""

    __slots__ = ("data", "lossy", "value")

    def __init__(self, data: bytes, value: T, lossy: str | None) -> None:
        self.data = data
        self.value = value
        self.lossy = lossy


class Form(Generic[T]):
    """How values of one annotation are stored. Without an annotation only plain JSON is taken."""

    __slots__ = ("_dump", "_limit", "_load", "annotation", "what")

    def __init__(self, annotation: Any, form: Codec, what: str, limit: int) -> None:
        self.annotation = annotation
        self.what = what
        self._limit = limit
        self._dump, self._load = form

    def store(self, value: T) -> bytes:
        """The value as JSON; raises `ValueRefused` if it would not come back as it is."""
        stored = self.stored(value)
        if stored.lossy is not None:
            raise ValueRefused(stored.lossy, what=self.what)
        return stored.data

    def stored(self, value: T) -> Stored[T]:
        """The value as JSON and as it comes back, which may differ in a way that is told; raises `ValueRefused` if it
        cannot be written or read at all."""
        try:
            # Warnings as errors would cost more than all the rest; they are asked for only if something is wrong.
            data = self._dump((value,), warnings=False, by_alias=True, round_trip=True)
            restored = self._load(data)[0]
            same = bool(restored == value)
        except Exception as error:
            return self._second_look(value, error)
        if len(data) - 2 > self._limit:
            raise self._too_large(len(data) - 2)
        if same:
            return Stored(data[1:-1], restored, None)
        return self._compared(data, value, restored)

    def restore(self, data: bytes) -> T:
        """The value behind its JSON; raises `ValueRefused` if it does not fit the annotation."""
        try:
            value: T = self._load(b"[%b]" % data)[0]
        except Exception as error:
            message = f"{self.what} cannot be read as {shown_type(self.annotation)}: {reason(error)}"
            raise ValueRefused(message, code="value_unreadable", what=self.what) from error
        return value

    def _compared(self, data: bytes, value: T, restored: T) -> Stored[T]:
        """What is unequal at first sight: alike after all, of a wrong type, or changed on the way."""
        if alike(value, restored) or (_is_abstract(self.annotation) and alike([*_items(value)], restored)):
            return Stored(data[1:-1], restored, None)
        try:
            self._dump((value,), warnings="error", by_alias=True, round_trip=True)
        except Exception as error:
            raise self._refusal(value, error) from error
        if self.annotation is EMPTY:
            raise self._not_plain(value)
        return Stored(data[1:-1], restored, self._difference(value, restored))

    def _second_look(self, value: T, error: Exception) -> Stored[T]:
        """Something failed: the value cannot be written or read, unless only the comparison did."""
        try:
            data, restored = self._as_the_model_reads_it(value)
        except Exception as cause:
            raise self._refusal(value, cause) from cause
        if len(data) - 2 > self._limit:
            raise self._too_large(len(data) - 2) from error
        return self._compared(data, value, restored)

    def _as_the_model_reads_it(self, value: T) -> tuple[bytes, T]:
        """A model may read a field under its alias only, or write it under one that it does not read."""
        try:
            data = self._dump((value,), warnings="error", by_alias=True, round_trip=True)
            return data, self._load(data)[0]
        except Exception:
            try:
                data = self._dump((value,), warnings="error", by_alias=False, round_trip=True)
                return data, self._load(data)[0]
            except Exception:
                pass
            raise  # What is wrong with the usual way says more.

    def _refusal(self, value: object, error: Exception) -> ValueRefused:
        if self.annotation is EMPTY:
            return self._not_plain(value)
        message = f"{self.what} cannot be stored as {shown_type(self.annotation)}: {reason(error)}"
        return ValueRefused(message, what=self.what)

    def _not_plain(self, value: object) -> ValueRefused:
        advice = "annotate the return type" if self.what.startswith("the result") else "annotate it"
        message = (
            f"{self.what} is not annotated, so only plain JSON can be stored, and {_shown(value)} is not: {advice}"
        )
        return ValueRefused(message, what=self.what)

    def _too_large(self, size: int) -> ValueRefused:
        refusal = limits.too_large(self.what, size, self._limit)
        return ValueRefused(refusal.message, code=refusal.code, size=size, limit=self._limit, what=self.what)

    def _difference(self, value: object, restored: object) -> str:
        kind = shown_type(self.annotation)
        return f"{self.what} does not survive as {kind}: {_shown(value)} comes back as {_shown(restored)}"


def form_of(
    annotation: Any, *, what: str, namespace: Names | None = None, limit: int = limits.PAYLOAD_BYTES
) -> Form[Any]:
    """How values of this annotation are stored; raises `InvalidRequest` for types that cannot be. `what` says in
    messages what the value is; `namespace` holds those that forward references in the type may use."""
    return Form(annotation, codec_of(annotation, what, namespace), what, limit)


def return_form(fn: Callable[..., Any], namespace: Names | None = None) -> Form[Any]:
    """How the results of `fn` are stored, whatever makes it callable; found once per function or class."""
    if isinstance(fn, FunctionType) and (found := _return_forms.get(fn)) is not None:
        return found
    key, owner = annotated(fn)
    if key is EMPTY or not isinstance(key, FunctionType | type):
        return _new_return_form(fn, key, namespace)
    kept = fn if isinstance(fn, FunctionType) else key
    found = _return_forms.get(kept)
    if found is None:
        found = _new_return_form(fn, key, namespace)
        if owner is None or found.annotation is not owner:  # `Self` means another class in a subclass.
            _return_forms[kept] = found
    return found


def codec_of(annotation: Any, what: str, namespace: Names | None) -> Codec:
    """What writes and reads values of this annotation; raises `InvalidRequest` for a type that is no data."""
    form = concrete(annotation)
    try:
        # Unions of the same members in another order are equal, but not the same; hence the text.
        return _shared_codec(form, repr(form))
    except PydanticUndefinedAnnotation as error:
        if namespace is None:
            raise unresolved(what, str(error.name)) from error
    except TypeError:  # Not hashable, or no type at all: the next try tells.
        pass
    except Exception as error:
        raise _not_storable(form, what, error) from error
    return fresh_codec(form, what, namespace)


def concrete(annotation: Any) -> Any:
    """What pydantic is asked for: an iterable would come back as a generator, which can be read only once."""
    if annotation is EMPTY:
        return JsonValue
    if get_origin(annotation) in (Iterable, Collection):
        return Sequence[get_args(annotation)]  # type: ignore[misc]
    return annotation


def _is_abstract(annotation: Any) -> bool:
    """True when the annotation asks for any kind of sequence, so that a tuple may come back as a list."""
    return get_origin(annotation) in (Iterable, Collection, Sequence)


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def fresh_codec(form: Any, what: str, namespace: Names | None) -> Codec:
    """The same for a type that nobody else asks for, so that it is not worth keeping."""
    try:
        return codec(form, namespace or {})
    except PydanticUndefinedAnnotation as error:
        raise unresolved(what, str(error.name)) from error
    except Exception as error:
        raise _not_storable(form, what, error) from error


@lru_cache(_CODECS_KEPT)
def _shared_codec(form: Any, text: str) -> Codec:
    return codec(form, {})


def _new_return_form(fn: Callable[..., Any], key: Any, namespace: Names | None) -> Form[Any]:
    name = getattr(key if key is not EMPTY else fn, "__qualname__", type(fn).__qualname__)
    what = f"the result of {name.rpartition('<locals>.')[2]}"
    return form_of(return_annotation(fn, namespace), what=what, namespace=namespace)


def _not_storable(form: Any, what: str, error: Exception) -> InvalidRequest:
    said = error.message if isinstance(error, PydanticErrorMixin) else repr(error)
    message = (
        f"{what} cannot be stored: {shown_type(form)} is no type of data ({said.splitlines()[0]}); "
        "use plain types, dataclasses or pydantic models"
    )
    return InvalidRequest("type_not_storable", message, what=what)


def shown_type(annotation: Any) -> str:
    """An annotation as it is written."""
    return annotation.__qualname__ if type(annotation) is type else str(annotation).replace("typing.", "")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "?"
    return f"{text[:100]}… ({type(value).__qualname__})" if len(text) > 100 else f"{text} ({type(value).__qualname__})"


_return_forms: WeakKeyDictionary[Any, Form[Any]] = WeakKeyDictionary()
