from dataclasses import dataclass


@dataclass(frozen=True)
class Typed:
    server: str
    command: str | None
    notes: tuple[str, ...]


class Choice:
    def __init__(self, **k):
        self.k = k


def typed_into(choice):
    return [Typed("vLLM", "vllm serve x", ("note",))]
