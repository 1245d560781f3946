"""The headers of every response: what browsers may do with the page. Data only."""

from specdemo.ui.limits import Limits

OWN_FRAMES = "'self' http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"
SPACES_FRAMES = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"


def headers_of(limits: Limits) -> dict[str, str]:
    """Those of every response."""
    frames = SPACES_FRAMES if limits.hosted else OWN_FRAMES
    return {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "content-security-policy": f"frame-ancestors {frames}",
    }
