"""Structured output: constraints on a generated text. Importing this imports no torch."""

import json
from importlib.util import find_spec
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specdec_core.interface.validated import Validated

_FORMS = ("json_schema", "regex", "grammar")


class Constraint(Validated):
    """A constraint of the new text: exactly one of a JSON schema, a regular expression and a grammar.

    The target samples from its own distribution without the tokens that cannot lead to such a text, renormalized
    at each position. llguidance, from the extra `grammar`, says which these are, and checks the constraint when it
    is read.
    """

    json_schema: dict[str, Any] | None = None
    """A JSON schema; `{}` is any JSON. The text has no optional white space, unless the schema contains
    `x-guidance: {whitespace_flexible: true}`."""
    regex: Annotated[str, Field(min_length=1)] | None = None
    """A regular expression that the whole text matches, in the syntax of Rust's `regex`."""
    grammar: Annotated[str, Field(min_length=1)] | None = None
    """A context-free grammar in llguidance's variant of Lark, or in the GBNF of llama.cpp."""
    fast_forward: bool = True
    """Commit tokens that are the only legal ones without a forward pass. The distribution stays the same."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(map(repr, given)) or "none of them"
            raise ValueError(f"set exactly one of 'json_schema', 'regex' and 'grammar'; given {found}")
        if find_spec("llguidance") is None:
            raise ValueError(
                "it needs the package llguidance, which is not installed: pip install 'specdec-core[grammar]'"
            )
        import llguidance

        try:
            wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(self.compiled())
        except (TypeError, ValueError) as error:
            wrong, messages = True, [str(error)]
        if wrong:
            raise ValueError(f"llguidance cannot use this {given[0]!r}: {messages[0].strip()}")
        return self

    @property
    def form(self) -> str:
        """The name of what was given, for messages."""
        return next(name for name in _FORMS if getattr(self, name) is not None).replace("_", " ")

    def compiled(self) -> str:
        """Return the constraint in the form that llguidance's matchers take.

        Raises:
            ValueError: It cannot be brought into that form.
        """
        import llguidance

        if self.json_schema is not None:
            text = json.dumps(self.json_schema)
            return llguidance.LLMatcher.grammar_from_json_schema(text, {"whitespace_flexible": False})
        if self.regex is not None:
            return llguidance.grammar_from("regex", self.regex)
        return llguidance.grammar_from("grammar", self.grammar or "")

    def __hash__(self) -> int:
        """Hash the settings as JSON: a schema is a mapping, which has no hash."""
        return hash(self.model_dump_json())
