"""JSON schemas as guides read them: objects that name their properties have no others.

Owns the change to a schema; where it is made is the native module's, because the gateway checks schemas the
same way. Does not depend on a compiler.
"""

from __future__ import annotations

import json
from typing import Any

from inflight._native import open_objects

Schema = dict[str, Any]


def closed(schema: Schema) -> Schema:
    """The schema, changed in place: ``additionalProperties`` is false where it says nothing, as in xgrammar.

    Errors: ValueError for a schema beyond the bounds of guides.
    """
    for pointer in open_objects(json.dumps(schema)):
        value: Any = schema
        for name in pointer.split("/")[1:]:
            value = value[
                int(name) if isinstance(value, list) else name.replace("~1", "/").replace("~0", "~")
            ]
        value["additionalProperties"] = False
    return schema
