"""Structured output from Python: see docs/structured-output.md."""

# --8<-- [start:batch]
from pydantic import BaseModel, Field

from specdec_core import Decoder, load_model


class Book(BaseModel, extra="forbid"):
    """A record of the library."""

    title: str = Field(max_length=24)
    year: int = Field(ge=1900, le=2030)


target = load_model("builtin:target")
decoder = Decoder(target, {"name": "transformer", "model": "builtin:drafter"}, gamma=4)
prompts = ["book = ", "answer = ", "def main():"]
constraints = [{"json_schema": Book.model_json_schema()}, {"regex": "yes|no"}, None]
result = decoder.generate(prompts, constraints=constraints, max_new_tokens=40)
book = Book.model_validate_json(result[0].text)
print(book, "|", result[1].text, "|", result.metrics.forced, "tokens forced")
# --8<-- [end:batch]
