"""Settings of an engine: a server that decodes a run's prompts. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from specdec_core.interface.validated import Validated


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError(f"expected the address of a server, such as http://127.0.0.1:8000/v1; given {url!r}")
    return url


class EngineConfig(Validated):
    """A running server with OpenAI's API: vLLM, SGLang, llama.cpp, `transformers serve`."""

    url: Annotated[str, AfterValidator(_check_url)]
    """Address of its API, such as `http://127.0.0.1:8000/v1`. The variable OPENAI_API_KEY holds its key, if
    it has one."""
    model: Annotated[str, Field(min_length=1)]
    """The model as the server names it."""
    concurrency: Annotated[int, Field(ge=1)] = 1
    """Number of requests that are sent at a time."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds to wait for one answer."""
    max_retries: Annotated[int, Field(ge=0)] = 2
    """How often a request is sent again, after a growing pause, if the server is away or too busy."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request, such as `{chat_template_kwargs: {enable_thinking: false}}`."""

    def decides(self) -> dict[str, Any]:
        """Return the settings that may change a result, as plain data: not where and how the server is reached."""
        return self.model_dump(mode="json", exclude={"url", "timeout", "max_retries"})

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return urlsplit(self.url).netloc
