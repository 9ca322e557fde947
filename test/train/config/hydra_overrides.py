"""
Overrides as Hydra's own parser reads them: the other side of the grammar's test.

    python hydra_overrides.py < texts.json

Reads a list of texts; prints a list of null for what Hydra refuses (sweeps too, as it does without --multirun),
and of [kind, key, value] otherwise. Numbers that JSON does not have are {"float": "inf"}.
"""

import json
import math
import sys

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType

KINDS = {
    OverrideType.CHANGE: "set",
    OverrideType.ADD: "add",
    OverrideType.FORCE_ADD: "force",
    OverrideType.DEL: "delete",
}


def key_text(key):
    return json.dumps(key) if key is None or isinstance(key, bool) else str(key)


def plain(value):
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key_text(key): plain(item) for key, item in value.items()}
    return value


def read(parser, text):
    try:
        override = parser.parse_override(text)
    except Exception:
        return None
    if override.is_sweep_override():
        return None
    return [KINDS[override.type], override.key_or_group, plain(override.value())]


parser = OverridesParser.create()
json.dump([read(parser, text) for text in json.load(sys.stdin)], sys.stdout)
