"""What few models or executors have: beams, images, drafters, resumed requests, events of the cache."""

from __future__ import annotations

import time

from inflight._native import Capability
from inflight.checklist import material
from inflight.checklist.check import check
from inflight.checklist.outcome import Facts, Skipped, expect, expect_equal
from inflight.checklist.subject import Subject
from inflight.executors.base import SamplingConfig
from inflight.model.files import load_json

#: Where configs have the token that an image becomes.
_IMAGE_TOKENS = ("image_token_id", "image_token_index")


@check("beams", "a search with two beams gives two sequences", needs=(Capability.BEAM_SEARCH,), load="beams")
def beams(subject: Subject) -> Facts:
    answer = subject.ask(8, sampling_config=SamplingConfig(beam_width=2), streaming=False).require()
    expect_equal("sequences", sorted(answer.tokens), [0, 1])
    return {"are_alike": answer.tokens[0] == answer.tokens[1]}


@check("images", "text is answered next to an image", needs=(Capability.IMAGES,))
def images(subject: Subject) -> None:
    config = load_json(subject.model_dir / "config.json")
    found = [config[name] for name in _IMAGE_TOKENS if isinstance(config.get(name), int)]
    if not found:
        raise Skipped("`config.json` does not name the token of an image")
    around = [config.get(name) for name in ("vision_start_token_id", "vision_end_token_id")]
    begin, end = ([token] if isinstance(token, int) else [] for token in around)
    seeing = subject.request(
        8,
        input_token_ids=[*begin, found[0], *end, *subject.prompt],
        tensors=[material.text("inflight_images", material.png())],
    )
    # On models with mRoPE, one of them failed both in versions near 1.2.
    [with_image, text] = subject.ask_all([seeing, subject.request(32)])
    expect_equal("tokens of the text", len(text.require().first), 32)
    expect_equal("tokens after the image", len(with_image.require().first), 8)


@check("drafter", "the drafter guesses tokens")
def drafter(subject: Subject) -> Facts:
    subject.executor.stats()
    # Something to look up, for drafters that do.
    prompt = (subject.prompt * 8)[: subject.info.max_input_len - 64]
    subject.ask(64, input_token_ids=prompt).require()
    time.sleep(0.2)
    stats = [one["specDecodingStats"] for one in subject.executor.stats() if one.get("specDecodingStats")]
    drafted = sum(one.get("numDraftTokens", 0) for one in stats)
    if not drafted:
        raise Skipped("no drafter is configured, or none reports what it guesses")
    return {"drafted": drafted, "accepted": sum(one.get("numAcceptedTokens", 0) for one in stats)}


@check("resumed", "a request that brings its first tokens continues after them", needs=(Capability.RESUME,))
def resumed(subject: Subject) -> None:
    tokens = subject.greedy()
    answer = subject.ask(16, generated=[tokens[:6]]).require()
    expect_equal("tokens", answer.first, tokens[6:])


@check("cache events", "blocks that are stored are reported", load="events")
def events(subject: Subject) -> Facts:
    take = getattr(subject.executor, "kv_cache_events", None)
    if take is None:
        raise Skipped("the executor reports no events of its KV cache")
    take()
    prompt = (subject.prompt * 64)[: min(3 * subject.info.tokens_per_block, subject.info.max_input_len - 1)]
    subject.ask(2, input_token_ids=prompt).require()
    deadline, found = time.monotonic() + 5.0, list(take())
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = list(take())
    if not found:
        raise Skipped("no event came within 5 s; are they turned on?")
    kinds = {str(event.get("data", {}).get("type")) for event in found}
    expect("stored" in kinds, f"no block was reported as stored: {sorted(kinds)}")
    return {"events": len(found), "kinds": sorted(kinds), "first": found[0]}
