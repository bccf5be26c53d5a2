"""Models behind other engines' servers: `tirage.LLM("http://...", dialect=...)`.

A request is written in the server's own fields (`tirage.dialects`), each of them stated; what the server has no field
for is refused before anything is sent.
"""

from tirage.remote.llm import RemoteLLM
from tirage.remote.routes import REMOTE_DIALECTS, honoured

__all__ = ["REMOTE_DIALECTS", "RemoteLLM", "honoured"]
