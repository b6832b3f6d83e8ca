"""Command lines behind the Makefile, and what they are made of."""

import sys

# jsonschema, below nbformat, does without this optional package, which only checks internationalised addresses
# and compiles its grammar on every import: two seconds of each start for nothing.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
