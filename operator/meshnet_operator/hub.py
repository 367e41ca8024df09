"""Tags and branches of a hub model become commits, once, before the first pod is made."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import aiohttp

from meshnet_operator.errors import Unreachable
from meshnet_operator.resource import MeshModel

COMMIT = re.compile(r"^[0-9a-f]{40}$")
SECONDS = 10.0


class Hub:
    """Asks `endpoint` (empty: nobody is asked, and a tag stays a tag)."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")

    async def pin(self, model: MeshModel) -> str | None:
        """The commit of model.revision; the revision itself where the hub does not tell (a private model: the operator
        reads no token); None for a model that is not from a hub and names none. Raises Unreachable.
        """
        source = str(model.spec["model"]["source"])
        revision: str | None = model.spec["model"].get("revision")
        if not source.startswith("hf://"):
            return None
        if not self._endpoint or (revision and COMMIT.match(revision)):
            return revision
        name = source.removeprefix("hf://")
        url = f"{self._endpoint}/api/models/{name}/revision/{quote(revision or 'main', safe='')}"
        try:
            limit = aiohttp.ClientTimeout(total=SECONDS)
            async with aiohttp.ClientSession(timeout=limit, trust_env=True) as session, session.get(url) as answer:
                if answer.status >= 500 or answer.status == 429:
                    raise Unreachable(f"{url}: {answer.status}")
                if answer.status >= 400:
                    return revision
                body: dict[str, Any] = await answer.json()
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise Unreachable(f"{url}: {type(error).__name__}") from error
        commit = str(body.get("sha", ""))
        return commit if COMMIT.match(commit) else revision
