"""A valid value of a message's type, as the JSON values that encode it."""

from __future__ import annotations

import base64
import itertools
import random
from typing import Any

from msgspec import inspect

#: numbers ascend, so that a range ends after it begins
_numbers = itertools.count(1)


def sample(kind: inspect.Type, draw: random.Random) -> Any:
    """Return a value of ``kind``, with every field of a struct."""
    match kind:
        case inspect.Metadata():
            return sample(kind.type, draw)
        case inspect.StructType():
            tag = {kind.tag_field: kind.tag} if kind.tag_field is not None else {}
            return tag | {field.encode_name: sample(field.type, draw) for field in kind.fields}
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return [sample(kind.item_type, draw) for _ in range(2)]
        case inspect.TupleType():
            return [sample(one, draw) for one in kind.item_types]
        case inspect.DictType():
            return {str(sample(kind.key_type, draw)): sample(kind.value_type, draw)}
        case inspect.UnionType():
            return sample(draw.choice(kind.types), draw)
        case inspect.IntType():
            return max(kind.ge or 0, next(_numbers))
        case inspect.FloatType():
            return draw.choice((0.0, 1.5))
        case inspect.LiteralType():
            return draw.choice(list(kind.values))
        case inspect.BoolType():
            return draw.random() < 0.5
        case inspect.NoneType():
            return None
        case inspect.BytesType():
            return base64.b64encode(b"b" * (kind.min_length or 0)).decode()
        case inspect.StrType() if kind.pattern is not None:
            return draw.choice(kind.pattern.strip("^$()").split("|"))
        case inspect.StrType():
            return draw.choice(("a", "r1", "t-0"))
        case inspect.AnyType():
            return {"a": [1, None]}
    raise TypeError(f"no sample of {kind}")
