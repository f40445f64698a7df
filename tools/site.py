"""A hook of mkdocs: what pages of the site would load from elsewhere stands beside them (``mkdocs.yml``)."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["on_post_page", "on_post_template"]

_SHIM = re.compile(r'src="?https://unpkg\.com/iframe-worker/shim"?')
"""With which search works in pages that are opened from the disk; mkdocs-material's offline plugin loads it from the network."""
_LOADED = re.compile(
    r'<(?:script|img|iframe)\b[^>]* src="?https?:[^>]*>|<link\b[^>]* rel="?(?:stylesheet|preconnect)"?[^>]* href="?https?:[^>]*>'
)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """A page with its own copy. Raises ValueError where something else would be loaded from elsewhere."""
    return _alone(output, page.url)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """As :func:`on_post_page`, of what is no page: the one for addresses that lead nowhere."""
    return _alone(output_content, template_name)


def _alone(output: str, url: str) -> str:
    own = _SHIM.sub(f'src="{"../" * url.count("/")}assets/iframe-worker.js"', output)
    if loaded := _LOADED.search(own):
        raise ValueError(f"{url} would load {loaded.group()}")
    return own
