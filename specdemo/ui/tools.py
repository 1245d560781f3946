"""The page's API as tools for language models (MCP): what a run wrote, in plain text. Without Gradio and
torch."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from specdemo.events import DRAFT_WITH, LIMITS, LOSSY, RULES, Params, Round, allowed
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.ui.served import drafting_in_words
from specdemo.ui.settings import judging_in_words

if TYPE_CHECKING:
    from gradio import Blocks

ENDPOINTS = {"generate": "generate_in_words", "pairs": "pairs_in_words"}  # of each tool, in Gradio
SHOWN_ROUNDS = 200
ARGUMENTS = {
    "prompt": "the text to continue",
    "pair": "a name that the tool pairs lists",
    "draft_with": f"what drafts: one of {', '.join(DRAFT_WITH)}; none is plain decoding",
    "gamma": "the most tokens drafted in a round; auto chooses it round by round",
    "confidence": "a draft ends where the drafter's likeliest token is less probable than this; 0 is off",
    "exit_layer": "how many of the target's layers draft with early-exit; 0 is a quarter of them",
    "rule": f"how drafts are judged: one of {', '.join(RULES)}; {' and '.join(LOSSY)} are lossy",
    "temperature": "0 is greedy",
    "top_k": "0 is off",
    "top_p": "1 is off",
    "min_p": "0 is off",
    "seed": "the same seed and settings give the same text; null draws one",
    "max_new_tokens": "the longest text, in tokens",
    "stop": "the text ends before the first of these strings",
    "ignore_eos": "continue after an end-of-sequence token",
    "chat": "apply the tokenizer's chat template to the prompt",
    "system": "a system prompt, with chat only",
    "ngram": "the longest n-gram that lookup matches or ngram stores",
    "alternatives": "how many likely tokens are recorded at each place; this answer does not show them",
    "lenience": "of rule lenient: less accepts more; 1 is exact",
}


def _described(name: str) -> str:
    return f"{ARGUMENTS[name]}; {allowed(name)}" if name in LIMITS else ARGUMENTS[name]


GENERATE = """Continues a prompt by speculative decoding. Answers with the text, with how well it went \
(acceptance rate, tokens a round, speed-up over the target alone or why there is none), and with the fate of \
every drafted token, a line a round.

Args:
"""
GENERATE += "\n".join(f"    {name}: {_described(name)}" for name in ARGUMENTS)
PAIRS = "Lists the pairs of models that the tool generate takes, with what each is; the first is the default."


def listed_in_words(pairs: Iterable[dict[str, Any]]) -> str:
    return "\n".join(
        f"{pair['name']}: target {pair['target']}, drafter {pair['drafter']}; {pair['about']}"
        for pair in pairs
    )


def in_words(trace: Trace) -> str:
    stats, params = trace.stats, trace.params
    rejected = "the server does not tell how many were" if stats.rejected is None else f"{stats.rejected:,}"
    unknown = "not known" if stats.rejected is None else "none judged"
    rate = unknown if stats.acceptance_rate is None else f"{stats.acceptance_rate:.0%}"
    per_round = stats.mean_tokens_per_round or 0
    numbers = (
        f"acceptance rate: {rate} ({stats.accepted:,} accepted, {rejected} rejected)",
        f"tokens a round: {per_round:.2f} ({stats.tokens:,} tokens, {stats.rounds:,} rounds)",
        f"speed: {verdict(stats, trace.finish, trace.rounds).text}",
        f"pair {trace.pair.name}, {_drafting(trace)}, "
        f"{''.join(f'{words}, ' for words in judging_in_words(params))}"
        f"temperature {params.temperature:g}, seed {params.seed}; ended by: {trace.finish}",
    )
    shown = trace.rounds[:SHOWN_ROUNDS]
    lines = [f"{one.index + 1}{_length(one, params)}: {' '.join(_parts(one))}" for one in shown]
    if left := len(trace.rounds) - SHOWN_ROUNDS:
        lines += [f"and {left:,} more rounds"] if left > 0 else []
    sections = (("Text", (trace.text,)), ("Numbers", numbers), ("Rounds", lines))
    return "\n\n".join(f"{title}:\n" + "\n".join(body) for title, body in sections)


def _drafting(trace: Trace) -> str:
    if trace.pair.server is not None:
        return f"{drafting_in_words(trace.pair.server)} (p, q, u and rejected tokens are not told)"
    return f"drafting with {trace.params.draft_with}, gamma {trace.params.gamma}"


def _length(a_round: Round, params: Params) -> str:
    """How long the draft could be and what ended it, where the settings let that change."""
    if (
        a_round.gamma is None
        or params.draft_with == "none"
        or not (params.gamma == "auto" or params.confidence)
    ):
        return ""
    return f" (gamma {a_round.gamma}, draft ended by {a_round.ended_by})"


def _parts(a_round: Round) -> Iterable[str]:
    """Such as [accepted: there] [rejected: lived -> resampled: was] [discarded: a]."""
    own = f"{a_round.next.source}: {_shown(a_round.next.text)}" if a_round.next else None
    dropped = ""
    for fate, tokens in groupby(a_round.draft, key=lambda token: token.fate):
        part = f"{fate}: {_shown(''.join('?' if token.id is None else token.text for token in tokens))}"
        if fate == "discarded":
            dropped = f"[{part}]"
        elif fate == "rejected" and own:
            yield f"[{part} -> {own}]"
            own = None
        else:
            yield f"[{part}]"
    if own:
        yield f"[{own}]"
    if dropped:
        yield dropped


def _shown(text: str) -> str:
    return text.strip(" ").replace("\\", "\\\\").replace("\n", "\\n")


def bound(demo: "Blocks", path: str = "/gradio_api/mcp") -> None:
    """Leaves of Gradio's MCP server the two tools, and of its addresses those that answer and are done: POST,
    the page for people, and the schema. The older transport (sse, messages) and listening (GET) would keep a
    stream for each caller for as long as it likes; clients must do without either."""
    served = demo.mcp_server_obj
    if served is None:  # the package mcp is not installed
        return
    served.tool_to_endpoint = {served.tool_prefix + tool: f"/{name}" for tool, name in ENDPOINTS.items()}
    for function in demo.fns.values():
        if function.api_name in ENDPOINTS.values():
            function.api_visibility = "private"  # the tools' server knows them by now, and nobody else is to
    demo.app.api_info = None
    demo.app.page_api_info.clear()
    demo.config = demo.get_config_file()
    mounted = next(route.app for route in demo.app.routes if getattr(route, "path", None) == path)
    mounted.routes[:] = [route for route in mounted.routes if route.path not in ("/sse", "/messages")]
    answer = mounted.routes[-1].app

    async def answer_at_once(scope: dict, receive: Callable, send: Callable) -> None:
        accepted = [value for name, value in scope["headers"] if name == b"accept"]
        listens = any(b"text/event-stream" in value for value in accepted)
        if scope["method"] == "POST" or (scope["method"] in ("GET", "HEAD") and not listens):
            await answer(scope, receive, send)
            return
        headers = [(b"allow", b"POST"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 405, "headers": headers})
        await send({"type": "http.response.body", "body": b"This server answers POST requests only."})

    mounted.routes[-1].app = answer_at_once
