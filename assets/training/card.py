"""Writes the card of a pair, with what its drafters reach: python -m assets.training.card --data DIR --pair
PAIR, see README.md."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers import HfArgumentParser
from transformers.hf_argparser import HfArg

from assets.training.data import read_documents
from specdemo import Params, generate, load_pair

PROMPT_WORDS = 8
DECODING = {
    "greedy": Params(temperature=0.0, gamma=4, max_new_tokens=200),
    "sampled (temperature 0.8, top-p 0.9)": Params(temperature=0.8, top_p=0.9, gamma=4, max_new_tokens=200),
}


@dataclass
class CardOptions:
    """What the card is written of."""

    data: Path = HfArg(help="folder of texts, whose held-out documents begin the prompts")
    pair: Path = HfArg(help="folder of the pair; the card is its README.md")
    sources: Path | None = HfArg(default=None, help="markdown file about where the texts come from")
    prompts: int = HfArg(default=40, help="how many prompts each drafter is tried on")


def main(argv: list[str]) -> None:
    (options,) = HfArgumentParser(CardOptions).parse_args_into_dataclasses(argv)
    _, heldout = read_documents(options.data, "*.txt")
    openings = dict.fromkeys(" ".join(text.split()[:PROMPT_WORDS]) for text in heldout)
    prompts = list(openings)[: options.prompts]
    files = {file.parent.name: file for file in sorted(options.pair.glob("*/training.json"))}
    names = sorted(files, key=lambda name: name != "target")
    made = {name: json.loads(files[name].read_text(encoding="utf-8")) for name in names}
    card = ModelCard.from_template(
        ModelCardData(library_name="transformers", pipeline_tag="text-generation"),
        template_path=str(Path(__file__).with_name("card.md")),
        made=made,
        rows=[row for name in names[1:] for row in rows_of(options.pair, name, prompts)],
        prompts=len(prompts),
        sources=options.sources.read_text(encoding="utf-8") if options.sources else "Not stated.",
    )
    card.save(options.pair / "README.md")


def rows_of(folder: Path, name: str, prompts: list[str]) -> list[dict[str, str | float]]:
    """What the engine does with a drafter, in each way to decode. A prompt's index is its seed."""
    pair, rows = load_pair(target=str(folder / "target"), drafter=str(folder / name)), []
    for decoding, params in DECODING.items():
        stats = [
            generate(pair, prompt, replace(params, seed=seed), measure=False).stats
            for seed, prompt in enumerate(prompts)
        ]
        accepted, rejected = sum(one.accepted for one in stats), sum(one.rejected for one in stats)
        rate = accepted / max(1, accepted + rejected)
        per_round = sum(one.tokens for one in stats) / sum(one.rounds for one in stats)
        rows.append({"name": name, "decoding": decoding, "rate": rate, "per_round": per_round})
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
